#pragma once
#include "megatron/kernels/phases/fp8/format.h"
#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// The largest of what the threads of a block have: each writes its part, a barrier, fold(), a barrier, all().
template <int kThreads>
struct BlockLargest {
  static constexpr int kLanes = 16;
  std::uint32_t part[kThreads], lane[kLanes];

  MEGATRON_BOTH void fold(int thread) {
    if (thread >= kLanes) return;
    std::uint32_t largest = part[thread];
    MEGATRON_UNROLL for (int i = kLanes; i < kThreads; i += kLanes) largest = larger(largest, part[thread + i]);
    lane[thread] = largest;
  }
  MEGATRON_BOTH std::uint32_t all() const {
    std::uint32_t largest = lane[0];
    MEGATRON_UNROLL for (int i = 1; i < kLanes; ++i) largest = larger(largest, lane[i]);
    return largest;
  }
};

/// The largest magnitude of each kEach numbers.
template <class T>
struct Fp8Maxima : Straight {
  static constexpr int kThreads = 256, kPhases = 3, kEach = 1 << 14;
  struct Args {
    const T* x = nullptr;
    std::uint32_t* out = nullptr;  ///< [blocks]
    std::int64_t size = 0;
  };
  using Shared = BlockLargest<kThreads>;
  using Local = Nothing;

  static std::int64_t blocks(std::int64_t size) { return (size + kEach - 1) / kEach; }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    if constexpr (kPhase == 0) {
      const std::int64_t begin = at.block * kEach, size = a.size - begin < kEach ? a.size - begin : kEach;
      std::uint32_t own = 0;
      for (std::int64_t c = at.thread; c < chunks_of<T>(size); c += kThreads) {
        Compute<T> x[kChunk<T>];
        load(a.x + begin + c * kChunk<T>, chunk_size<T>(size, c), x);
        MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) own = larger(own, magnitude_of(x[i]));
      }
      shared.part[at.thread] = own;
    } else if constexpr (kPhase == 1) {
      shared.fold(at.thread);
    } else if (at.thread == 0) {
      a.out[at.block] = shared.all();
    }
  }
};

/// The largest of `count` magnitudes, by one block.
struct Fp8Largest : Straight {
  static constexpr int kThreads = 256, kPhases = 3;
  struct Args {
    const std::uint32_t* parts = nullptr;
    std::int64_t count = 0;
    std::uint32_t* largest = nullptr;  ///< null: not wanted
    std::uint32_t* seen = nullptr;     ///< becomes the larger of itself and that; null: not wanted
  };
  using Shared = BlockLargest<kThreads>;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    if constexpr (kPhase == 0) {
      std::uint32_t own = 0;
      for (std::int64_t i = at.thread; i < a.count; i += kThreads) own = larger(own, a.parts[i]);
      shared.part[at.thread] = own;
    } else if constexpr (kPhase == 1) {
      shared.fold(at.thread);
    } else if (at.thread == 0) {
      const std::uint32_t all = shared.all();
      if (a.largest != nullptr) *a.largest = all;
      if (a.seen != nullptr) *a.seen = larger(*a.seen, all);
    }
  }
};

/// Scales of magnitudes, each of its own. A thread one.
struct Fp8ScaleOf : Straight {
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    const float* amax = nullptr;
    float *scale = nullptr, *inverse = nullptr;
    std::int64_t size = 0;
    bool fine = false;
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t i = task_of<Fp8ScaleOf>(at);
    if (i >= a.size) return;
    const auto [scale, inverse] = scale_for(magnitude_of(a.amax[i]), a.fine);
    a.scale[i] = scale;
    a.inverse[i] = inverse;
  }
};

}  // namespace megatron::kernels::phases
