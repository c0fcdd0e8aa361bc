#include "megatron/comm/threads/wake.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <thread>

namespace megatron::comm {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

/// Sleeps while `word` holds `value`, at most `limit`. May wake early.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t value, std::chrono::nanoseconds limit) {
  const timespec t{static_cast<time_t>(limit.count() / 1'000'000'000),
                   static_cast<long>(limit.count() % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &t, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Wake::notify() {
  // Sequentially consistent with the waiter's `sleepers_` and `epoch_`: either it sees the new epoch and does not
  // sleep, or it is counted here and woken.
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) wake_all(epoch_);
}

bool Wake::wait_until(const std::function<bool()>& ready, Clock::time_point deadline) {
  const int spins = own_core_ ? 4000 : 50;  // about 100 us and 1 us
  const int yields = own_core_ ? 200 : 4;
  for (int i = 0; i < spins; ++i) {
    if (ready()) return true;
    relax();
  }
  for (int i = 0; i < yields; ++i) {
    std::this_thread::yield();
    if (ready()) return true;
  }
  for (;;) {
    const std::uint32_t seen = epoch_.load();
    if (ready()) return true;
    const auto left = deadline - Clock::now();
    if (left <= Clock::duration::zero()) return false;
    sleepers_.fetch_add(1);
    sleep_on(epoch_, seen, std::min<std::chrono::nanoseconds>(left, std::chrono::seconds(10)));
    sleepers_.fetch_sub(1);
  }
}

}  // namespace megatron::comm
