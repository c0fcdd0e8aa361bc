#include "megatron/base/machine/parallel.h"

#include <algorithm>
#include <exception>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

namespace megatron {

void for_each_on_threads(std::size_t count, int threads,
                         const std::function<void(std::size_t index, std::size_t worker)>& work) {
  std::mutex mutex;
  std::size_t next = 0, failed = count;  // the smallest index that threw
  std::exception_ptr failure;
  const auto run = [&](std::size_t worker) {
    while (true) {
      std::size_t index = 0;
      {
        const std::lock_guard lock(mutex);
        if (next == count || failure) return;
        index = next++;
      }
      try {
        work(index, worker);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (index < failed) failed = index, failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    const std::size_t workers = std::min(static_cast<std::size_t>(std::max(threads, 1)), count);
    for (std::size_t worker = 1; worker < workers; ++worker) others.emplace_back(run, worker);
    run(0);
  }
  if (failure) std::rethrow_exception(failure);
}

void require_threads(int count) {
  std::latch all_tried(1);
  std::vector<std::jthread> threads;
  const auto let_go = [&] { all_tried.count_down(); };
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([&all_tried] { all_tried.wait(); });
  } catch (...) {
    let_go();
    throw;
  }
  let_go();
}

}  // namespace megatron
