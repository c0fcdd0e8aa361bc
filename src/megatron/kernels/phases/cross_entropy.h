#pragma once
#include <limits>

#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// Per row of logits its maximum, the sum of exponentials, the label's logit and the sum, in one pass. A block a row.
template <class T>
struct SoftmaxPieces : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 3, kLanes = 32, kAtOnce = 4;
  struct Args {
    const T* logits = nullptr;  ///< [n, v]
    const std::int64_t* labels = nullptr;
    C *max = nullptr, *sum_exp = nullptr, *target = nullptr, *sum = nullptr;  ///< [n]; sum may be null
    std::int64_t v = 0, columns = 0;                                          ///< the first columns take part
    std::int64_t begin = 0;                                                   ///< token of column 0
  };
  struct Pieces {
    C max, sum_exp, sum;
  };
  struct Shared {
    Pieces part[kThreads], lane[kLanes];
  };
  using Local = Nothing;

  static MEGATRON_BOTH Pieces none() { return {-std::numeric_limits<C>::infinity(), C(0), C(0)}; }
  static MEGATRON_BOTH C scaled(C sum_exp, C from, C to) {
    return sum_exp == C(0) ? C(0) : sum_exp * std::exp(from - to);
  }
  static MEGATRON_BOTH Pieces joined(const Pieces& a, const Pieces& b) {
    const C max = a.max < b.max ? b.max : a.max;
    return {max, scaled(a.sum_exp, a.max, max) + scaled(b.sum_exp, b.max, max), a.sum + b.sum};
  }

  static MEGATRON_BOTH void add(Pieces& own, const Chunk<T>& stored, int count, bool with_sum) {
    C x[kChunk<T>];
    unpack(stored, x);
    MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) {
      if (i >= count) x[i] = none().max;
    }
    C max = own.max;
    MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) max = max < x[i] ? x[i] : max;
    const C base = max == none().max ? C(0) : max;  // of no logit but -inf: exp(-inf)
    C sum_exp = own.max == max ? own.sum_exp : scaled(own.sum_exp, own.max, max);
    MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) sum_exp += quick_exp<T>(x[i] - base);
    if (with_sum) {
      MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) {
        if (i < count) own.sum += x[i];
      }
    }
    own.max = max;
    own.sum_exp = sum_exp;
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    const T* const row = a.logits + at.block * a.v;
    if constexpr (kPhase == 0) {
      Pieces own = none();
      const std::int64_t chunks = chunks_of<T>(a.columns);
      for (std::int64_t c = at.thread; c < chunks; c += kThreads * kAtOnce) {
        Chunk<T> stored[kAtOnce];
        MEGATRON_UNROLL for (int r = 0; r < kAtOnce; ++r) {
          const std::int64_t chunk = c + r * kThreads;
          if (chunk < chunks) stored[r] = load_chunk(row + chunk * kChunk<T>, chunk_size<T>(a.columns, chunk));
        }
        MEGATRON_UNROLL for (int r = 0; r < kAtOnce; ++r) {
          const std::int64_t chunk = c + r * kThreads;
          if (chunk < chunks) add(own, stored[r], chunk_size<T>(a.columns, chunk), a.sum != nullptr);
        }
      }
      shared.part[at.thread] = own;
    } else if constexpr (kPhase == 1) {
      if (at.thread >= kLanes) return;
      Pieces lane = shared.part[at.thread];
      for (int i = at.thread + kLanes; i < kThreads; i += kLanes) lane = joined(lane, shared.part[i]);
      shared.lane[at.thread] = lane;
    } else {
      if (at.thread != 0) return;
      Pieces all = shared.lane[0];
      for (int i = 1; i < kLanes; ++i) all = joined(all, shared.lane[i]);
      a.max[at.block] = all.max;
      a.sum_exp[at.block] = all.sum_exp;
      if (a.sum != nullptr) a.sum[at.block] = all.sum;
      const std::int64_t column = a.labels[at.block] - a.begin;
      a.target[at.block] = column >= 0 && column < a.columns ? static_cast<C>(widen(row[column])) : C(0);
    }
  }
};

/// The gradient in place of the logits. A thread a chunk.
template <class T>
struct CrossEntropyGradient : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    T* logits = nullptr;  ///< [n, v]
    const std::int64_t* labels = nullptr;
    const C *logsumexp = nullptr, *scale = nullptr;  ///< [n]
    std::int64_t rows = 0, v = 0, columns = 0, begin = 0;
    Divisor chunks = {};           ///< of a row
    C smoothing = 0, uniform = 0;  ///< label smoothing, and that over the vocabulary
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<CrossEntropyGradient>(at), row = a.chunks.of(task);
    if (row >= a.rows) return;
    const std::int64_t chunk = task - row * a.chunks.by, first = chunk * kChunk<T>;
    const int count = chunk_size<T>(a.v, chunk);
    const C logsumexp = a.logsumexp[row], scale = a.scale[row], right = C(1) - a.smoothing;
    const std::int64_t label = a.labels[row] - a.begin - first, real = a.columns - first;
    C x[kChunk<T>];
    load(a.logits + row * a.v + first, count, x);
    MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) {
      C gradient = quick_exp<T>(x[i] - logsumexp) - a.uniform;
      if (label == i) gradient = gradient - right;
      x[i] = i < real ? gradient * scale : C(0);
    }
    store(a.logits + row * a.v + first, count, x);
  }
};

}  // namespace megatron::kernels::phases
