#pragma once
#include "megatron/kernels/phases/token.h"

namespace megatron::kernels::phases {

/// Norms that no product reads: of queries and keys, or of what a branch gives, which is then added to the stream. A
/// block a row.
template <class T>
struct TokenNorm : Straight {
  using C = Compute<T>;
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128, kPhases = 5;
  struct Args {
    const T *x = nullptr, *add = nullptr;                                   ///< rows; null: nothing is added
    T* y = nullptr;                                                         ///< may be x
    const T *gain[2] = {nullptr, nullptr}, *shift[2] = {nullptr, nullptr};  ///< null shift: RMSNorm
    std::int64_t size = 0;
    /// 0: every row is normalized by the first gain. Else rows are heads: of ratio + 2 so many are queries, the next is
    /// a key, which has the second gain, and the last stays as it is.
    std::int64_t ratio = 0;
    C eps = 0;

    MEGATRON_BOTH std::int64_t place(std::int64_t block) const {
      return (ratio == 0 ? block : block / (ratio + 1) * (ratio + 2) + block % (ratio + 1)) * size;
    }
    MEGATRON_BOTH int kind(std::int64_t block) const { return ratio > 0 && block % (ratio + 1) == ratio ? 1 : 0; }
  };
  struct Shared {
    BlockSum<C, kThreads> sum;
  };
  struct Local {
    C mean;
  };

  /// Of this thread's elements x the sum of x - mean, or of its squares.
  static MEGATRON_BOTH C part(const Args& a, const At& at, C mean, bool squares) {
    C sum = 0;
    for (std::int64_t c = at.thread; c < chunks_of<T>(a.size); c += kThreads) {
      const int count = chunk_size<T>(a.size, c);
      C x[kChunk<T>];
      load(a.x + a.place(at.block) + c * kChunk<T>, count, x);
      for (int e = 0; e < kChunk<T>; ++e) {
        if (e >= count) continue;
        const C value = x[e] - mean;
        sum += squares ? value * value : value;
      }
    }
    return sum;
  }
  static MEGATRON_BOTH void write_row(const Args& a, const At& at, C mean, C rstd) {
    const T *const gains = a.gain[a.kind(at.block)], *const shifts = a.shift[a.kind(at.block)];
    for (std::int64_t c = at.thread; c < chunks_of<T>(a.size); c += kThreads) {
      const int count = chunk_size<T>(a.size, c);
      const std::int64_t first = c * kChunk<T>, place = a.place(at.block) + first;
      C x[kChunk<T>], gain[kChunk<T>], shift[kChunk<T>] = {}, add[kChunk<T>] = {};
      load(a.x + place, count, x);
      load(gains + first, count, gain);
      if (shifts != nullptr) load(shifts + first, count, shift);
      if (a.add != nullptr) load(a.add + place, count, add);
      for (int e = 0; e < kChunk<T>; ++e) {
        C value = (x[e] - mean) * rstd * gain[e];
        if (shifts != nullptr) value = value + shift[e];
        x[e] = a.add != nullptr ? widen(narrow<T>(value)) + add[e] : value;
      }
      store(a.y + place, count, x);
    }
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local& local) {
    const bool rms = a.shift[0] == nullptr;
    if constexpr (kPhase == 0) {
      let_next_kernel_begin();
      wait_for_kernels_before();
      shared.sum.part[at.thread] = rms ? C(0) : part(a, at, C(0), false);
    } else if constexpr (kPhase == 1 || kPhase == 3) {
      shared.sum.fold(at.thread);
    } else if constexpr (kPhase == 2) {
      local.mean = shared.sum.total() / static_cast<C>(a.size);
      shared.sum.part[at.thread] = part(a, at, local.mean, true);
    } else {
      write_row(a, at, local.mean, C(1) / std::sqrt(shared.sum.total() / static_cast<C>(a.size) + a.eps));
    }
  }
};

}  // namespace megatron::kernels::phases
