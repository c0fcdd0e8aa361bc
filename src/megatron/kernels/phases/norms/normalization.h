#pragma once
#include "megatron/kernels/phases/kernel.h"
#include "megatron/kernels/phases/mask.h"

namespace megatron::kernels::phases {

/// Chunks of a row that a block keeps, in shared memory: the rest of a longer row is read again.
inline constexpr int kKeptChunks = 512;

/// x = mask * (x + bias) + residual, then the norm of that; or the norm of x alone. A block a row.
template <class T>
struct AddNorm : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 128, kPhases = 5, kResident = 8;
  struct Args {
    const T* x = nullptr;
    T* sum = nullptr;  ///< may be x; null: no addition
    const T *bias = nullptr, *residual = nullptr;
    const T *weight = nullptr, *norm_bias = nullptr;
    T* y = nullptr;
    C *mean = nullptr, *rstd = nullptr;
    std::int64_t h = 0;
    Divisor batch = {};
    C eps = 0;
    bool rms = false;
    Mask mask = {};
  };
  struct Shared {
    Chunk<T> kept[kKeptChunks];
    BlockSum<C, kThreads> sum;
  };
  struct Local {
    C mean;
  };

  /// Calls visit(first, count, x) for each chunk of this thread, of the row that is normed.
  template <class Visit>
  static MEGATRON_BOTH void each(const Args& a, const At& at, const Shared& shared, const Visit& visit) {
    const T* const row = (a.sum != nullptr ? a.sum : a.x) + at.block * a.h;
    for (std::int64_t c = at.thread; c < chunks_of<T>(a.h); c += kThreads) {
      const int count = chunk_size<T>(a.h, c);
      C x[kChunk<T>];
      unpack(c < kKeptChunks ? shared.kept[c] : load_chunk(row + c * kChunk<T>, count), x);
      visit(c * kChunk<T>, count, x);
    }
  }

  /// Of one chunk, what is normed.
  static MEGATRON_BOTH Chunk<T> added(const Args& a, const At& at, std::int64_t c) {
    const std::int64_t row = at.block * a.h, first = c * kChunk<T>;
    const int count = chunk_size<T>(a.h, c);
    const Chunk<T> stored = load_chunk(a.x + row + first, count);
    if (a.sum == nullptr) return stored;
    C x[kChunk<T>], other[kChunk<T>];
    unpack(stored, x);
    if (a.bias != nullptr) {
      load(a.bias + first, count, other);
      MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) x[i] = x[i] + other[i];
    }
    if (a.mask.on) {
      const std::int64_t position = a.batch.of(at.block);
      a.mask.factors(at.block - position * a.batch.by, a.mask.element(position, first), other);
      MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) x[i] = x[i] * other[i];
    }
    load(a.residual + row + first, count, other);
    MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) x[i] = i < count ? x[i] + other[i] : C(0);
    const Chunk<T> sum = packed<T>(x);
    store_chunk(a.sum + row + first, count, sum);
    return sum;
  }

  static MEGATRON_BOTH C part_of_sum(const Args& a, const At& at, Shared& shared) {
    C part = 0;
    for (std::int64_t c = at.thread; c < chunks_of<T>(a.h); c += kThreads) {
      const Chunk<T> chunk = added(a, at, c);
      if (c < kKeptChunks) shared.kept[c] = chunk;
      C x[kChunk<T>];
      unpack(chunk, x);
      MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) part += x[i];
    }
    return part;
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local& local) {
    if constexpr (kPhase == 0) {
      shared.sum.part[at.thread] = part_of_sum(a, at, shared);
    } else if constexpr (kPhase == 1 || kPhase == 3) {
      shared.sum.fold(at.thread);
    } else if constexpr (kPhase == 2) {
      const C mean = a.rms ? C(0) : shared.sum.total() / static_cast<C>(a.h);
      C part = 0;
      each(a, at, shared, [&](std::int64_t, int count, const C(&x)[kChunk<T>]) {
        MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) {
          if (i < count) part += (x[i] - mean) * (x[i] - mean);
        }
      });
      local.mean = mean;
      shared.sum.part[at.thread] = part;
    } else {
      const C mean = local.mean, rstd = C(1) / std::sqrt(shared.sum.total() / static_cast<C>(a.h) + a.eps);
      each(a, at, shared, [&](std::int64_t first, int count, C(&x)[kChunk<T>]) {
        C other[kChunk<T>];
        load(a.weight + first, count, other);
        MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) x[i] = (x[i] - mean) * rstd * other[i];
        if (!a.rms) {
          load(a.norm_bias + first, count, other);
          MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) x[i] = x[i] + other[i];
        }
        store(a.y + at.block * a.h + first, count, x);
      });
      if (at.thread == 0) {
        a.rstd[at.block] = rstd;
        if (!a.rms) a.mean[at.block] = mean;
      }
    }
  }
};

}  // namespace megatron::kernels::phases
