#pragma once
#include <omp.h>

#include <cstdint>

namespace megatron::kernels::cpu {

/// Calls fn(i) for i in [0, count) on the OpenMP threads of the calling thread (configure_thread), handing out indices
/// as threads become free. fn must not throw, and what it computes for i must not depend on which thread runs it.
template <class Fn>
void for_each_block(std::int64_t count, const Fn& fn) {
  if (count <= 1 || omp_get_max_threads() == 1 || omp_in_parallel()) {
    for (std::int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < count; ++i) fn(i);
}

}  // namespace megatron::kernels::cpu
