#pragma once
#include "megatron/kernels/phases/kernel.h"
#include "megatron/kernels/phases/mask.h"

namespace megatron::kernels::phases {

/// out = mask * (x + bias) + residual, of which each may be absent. A thread a chunk.
template <class T>
struct BiasDropoutAdd : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    const T *x = nullptr, *bias = nullptr, *residual = nullptr;
    T* out = nullptr;  ///< may be x
    std::int64_t rows = 0, h = 0;
    Divisor chunks = {}, batch = {};  ///< chunks of a row
    Mask mask = {};
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<BiasDropoutAdd>(at), row = a.chunks.of(task);
    if (row >= a.rows) return;
    const std::int64_t chunk = task - row * a.chunks.by, first = chunk * kChunk<T>;
    const int count = chunk_size<T>(a.h, chunk);
    C x[kChunk<T>], other[kChunk<T>];
    load(a.x + row * a.h + first, count, x);
    if (a.bias != nullptr) {
      load(a.bias + first, count, other);
      MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) x[i] = x[i] + other[i];
    }
    if (a.mask.on) {
      const std::int64_t position = a.batch.of(row);
      a.mask.factors(row - position * a.batch.by, a.mask.element(position, first), other);
      MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) x[i] = x[i] * other[i];
    }
    if (a.residual != nullptr) {
      load(a.residual + row * a.h + first, count, other);
      MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) x[i] = x[i] + other[i];
    }
    store(a.out + row * a.h + first, count, x);
  }
};

/// The mask itself, of an activation (rows are positions and batch) or of attention's probabilities: then a row is a
/// query of a head of a sample, and element 0 of the row is number `row % rows_of_sample` * h.
template <class T>
struct WriteMask : Straight {
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    T* out = nullptr;
    std::int64_t rows = 0, h = 0;
    std::int64_t rows_of_sample = 0;  ///< 0: of an activation
    Divisor chunks = {}, group = {};  ///< of a row; rows of a sample, or of an activation samples of a position
    Mask mask = {};
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<WriteMask>(at), row = a.chunks.of(task);
    if (row >= a.rows) return;
    const std::int64_t chunk = task - row * a.chunks.by, first = chunk * kChunk<T>;
    const int count = chunk_size<T>(a.h, chunk);
    const bool activation = a.rows_of_sample == 0;
    const std::int64_t group = a.group.of(row), rest = row - group * a.group.by;
    Compute<T> x[kChunk<T>];
    a.mask.factors(activation ? rest : group, a.mask.element(activation ? group : rest, first), x);
    store(a.out + row * a.h + first, count, x);
  }
};

}  // namespace megatron::kernels::phases
