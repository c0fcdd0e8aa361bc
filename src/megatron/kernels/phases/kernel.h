#pragma once
#include "megatron/kernels/phases/chunk.h"

// A kernel is a struct of phases between barriers. The device driver (cuda/driver.cuh) runs a block's threads at once
// with __syncthreads() between phases, the host driver (emulated/driver.h) one thread after the other:
//
//   struct NAME : Straight {
//     static constexpr int kThreads, kPhases;
//     struct Args;    // by value: pointers and sizes
//     struct Shared;  // of a block; not initialized
//     struct Local;   // of a thread, kept from phase to phase; not initialized
//     template <int kPhase> static void run(const Args&, const At&, Shared&, Local&);
//   };
//
// With `static std::int64_t extra_bytes(const Args&)` a block has so many bytes more behind Shared, at &shared + 1.
// With `static constexpr bool kOverlaps` it may begin while the kernel before it ends (token.h). Within a phase no
// thread reads what another writes. All sums are taken in an order that the sizes alone decide.
namespace megatron::kernels::phases {

struct At {
  std::int64_t block = 0;
  int thread = 0;
  int round = 0;  ///< of the phases that are repeated
};

/// Phases kRepeatFrom to kRepeatTo - 1 run repeats() times, the others once. kResident: blocks that a multiprocessor
/// shall hold at once, for which a thread may use fewer registers; 0: as it comes.
struct Straight {
  static constexpr int kRepeatFrom = 0, kRepeatTo = 0, kResident = 0;
  template <class Args>
  static MEGATRON_BOTH int repeats(const Args&, std::int64_t) {
    return 0;
  }
};

struct Nothing {};

/// Whether the phases of a kernel are run by warps (flash/warp.h).
template <class Kernel>
concept OfWarps = requires {
  Kernel::kWarps;
};

template <class Kernel>
std::int64_t extra_bytes_of(const typename Kernel::Args& args) {
  if constexpr (requires { Kernel::extra_bytes(args); })
    return Kernel::extra_bytes(args);
  else
    return 0;
}

/// The sum over a block: each thread writes its part, a barrier, fold(), a barrier, total().
template <class C, int kThreads>
struct BlockSum {
  static constexpr int kLanes = 8;
  C part[kThreads];
  C lane[kLanes];

  MEGATRON_BOTH void fold(int thread) {
    if (thread >= kLanes) return;
    C sum = part[thread];
    MEGATRON_UNROLL for (int i = kLanes; i < kThreads; i += kLanes) sum += part[thread + i];
    lane[thread] = sum;
  }
  MEGATRON_BOTH C total() const {
    C sum = lane[0];
    MEGATRON_UNROLL for (int i = 1; i < kLanes; ++i) sum += lane[i];
    return sum;
  }
};

/// How many blocks of kThreads cover `tasks`, one a thread.
template <class Kernel>
constexpr std::int64_t blocks_for(std::int64_t tasks) {
  return (tasks + Kernel::kThreads - 1) / Kernel::kThreads;
}
template <class Kernel>
MEGATRON_BOTH std::int64_t task_of(const At& at) {
  return at.block * Kernel::kThreads + at.thread;
}

}  // namespace megatron::kernels::phases
