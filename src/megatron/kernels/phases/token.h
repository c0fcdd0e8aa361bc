#pragma once
#include "megatron/kernels/phases/kernel.h"

// What the kernels of a decoded token have in common.
//
// They overlap (kOverlaps, cuda/driver.cuh): one begins while the one before it ends, and asks for what no kernel
// writes, its rows of a matrix. Each waits for the kernels before it, and so for all that these have waited for, before
// it reads or writes anything else.
namespace megatron::kernels::phases {

/// From here on the next kernel may begin.
MEGATRON_BOTH void let_next_kernel_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Returns when the kernels before this one have ended, and what they have written can be read.
MEGATRON_BOTH void wait_for_kernels_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The sum of what 32 lanes have, in one order. Behind them a number that keeps arrays in different banks.
template <class C>
MEGATRON_BOTH C sum_of_lanes(const C (&lanes)[33]) {
  C sums[4] = {};
  for (int i = 0; i < 32; i += 4)
    for (int e = 0; e < 4; ++e) sums[e] += lanes[i + e];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace megatron::kernels::phases
