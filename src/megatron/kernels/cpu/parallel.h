#pragma once
#include <omp.h>

#include <atomic>
#include <cstdint>

namespace megatron::kernels::cpu {

/// OpenMP threads that for_each_block will use (configure_thread).
inline int num_threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

/// Calls fn(i, thread) for i in [0, count), handing out indices as threads become free; thread is in [0,
/// num_threads()). fn must not throw, and what it computes for i must not depend on the thread.
template <class Fn>
void for_each_block(std::int64_t count, const Fn& fn) {
  if (count <= 1 || num_threads() == 1) {
    for (std::int64_t i = 0; i < count; ++i) fn(i, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < count; ++i) fn(i, omp_get_thread_num());
}

/// for_each_block(), with indices handed out in ascending order: fn(i) may wait for what fn of smaller indices does.
template <class Fn>
void for_each_in_order(std::int64_t count, const Fn& fn) {
  if (count <= 1 || num_threads() == 1) {
    for (std::int64_t i = 0; i < count; ++i) fn(i, 0);
    return;
  }
  std::atomic<std::int64_t> next = 0;
#pragma omp parallel
  for (std::int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
       i = next.fetch_add(1, std::memory_order_relaxed))
    fn(i, omp_get_thread_num());
}

}  // namespace megatron::kernels::cpu
