#include "megatron/comm/threads/rank_threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "megatron/base/error.h"

namespace megatron::comm {
namespace {

struct Endings {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> ended;
  std::exception_ptr first_error;

  bool all() const {
    return std::all_of(ended.begin(), ended.end(), [](bool e) { return e; });
  }
};

/// Returns when all ranks have ended, or `patience` after the first error. Names the ranks that still run.
std::string wait_for_ends(Endings& endings, std::chrono::milliseconds patience) {
  std::unique_lock lock(endings.mutex);
  endings.changed.wait(lock, [&] { return endings.first_error || endings.all(); });
  if (endings.changed.wait_for(lock, patience, [&] { return endings.all(); })) return "";
  std::string message = "still running after another rank has failed: rank";
  for (std::size_t r = 0; r < endings.ended.size(); ++r)
    if (!endings.ended[r]) message += concat(" ", r);
  return message + "\n" + message_of(endings.first_error);
}

}  // namespace

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

void run_rank_threads(int size, const std::function<void(int)>& body,
                      const std::function<void(int, const std::exception_ptr&)>& on_end,
                      std::chrono::milliseconds patience, const std::function<void(const std::string&)>& on_stuck) {
  if (size < 1) throw std::invalid_argument(rule_got_fix("A world has at least one rank.", concat(size)));
  const int threads_before = at::get_num_threads();
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  Endings endings;
  endings.ended.resize(static_cast<std::size_t>(size));
  {
    std::promise<bool> all_started;  // false: one could not be; none begins what it would wait for the others in
    const std::shared_future<bool> begin = all_started.get_future().share();
    std::vector<std::jthread> threads;
    const auto run = [&, begin](int r) {
      if (!begin.get()) return;
      std::exception_ptr error;
      try {
        at::set_num_threads(std::max(1, cores / size));
        body(r);
      } catch (...) {
        error = std::current_exception();
      }
      on_end(r, error);
      const std::lock_guard lock(endings.mutex);
      endings.ended[static_cast<std::size_t>(r)] = true;
      if (error && !endings.first_error) endings.first_error = error;
      endings.changed.notify_all();
    };
    try {
      for (int r = 0; r < size; ++r) threads.emplace_back(run, r);
    } catch (...) {
      all_started.set_value(false);
      throw;
    }
    all_started.set_value(true);
    const std::string stuck = wait_for_ends(endings, patience);
    if (!stuck.empty() && on_stuck) on_stuck(stuck);
  }
  at::set_num_threads(threads_before);  // also the default of threads to come, which the ranks have changed
  if (endings.first_error) std::rethrow_exception(endings.first_error);
}

}  // namespace megatron::comm
