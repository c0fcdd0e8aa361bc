#pragma once
#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// out = mask * (x + bias) + residual, of which each may be absent. A thread a chunk.
template <class T>
struct BiasDropoutAdd : Straight {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    const T *x = nullptr, *bias = nullptr, *residual = nullptr;
    T* out = nullptr;  ///< may be x
    std::int64_t rows = 0, h = 0, batch = 1;
    Mask mask = {};
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<BiasDropoutAdd>(at), chunks = chunks_of<T>(a.h), row = task / chunks;
    if (row >= a.rows) return;
    const std::int64_t chunk = task % chunks, first = chunk * kChunk<T>;
    const int count = chunk_size<T>(a.h, chunk);
    C x[kChunk<T>], bias[kChunk<T>], residual[kChunk<T>];
    load(a.x + row * a.h + first, count, x);
    if (a.bias != nullptr) load(a.bias + first, count, bias);
    if (a.residual != nullptr) load(a.residual + row * a.h + first, count, residual);
    Words words = a.mask.on ? a.mask.words(row % a.batch) : Words{};
    for (int i = 0; i < kChunk<T>; ++i) {
      if (i >= count) continue;
      if (a.bias != nullptr) x[i] = x[i] + bias[i];
      if (a.mask.on) x[i] = x[i] * static_cast<C>(a.mask.of(words, a.mask.element(row / a.batch, first + i)));
      if (a.residual != nullptr) x[i] = x[i] + residual[i];
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
    std::int64_t rows = 0, h = 0, batch = 1;
    std::int64_t rows_of_sample = 0;  ///< 0: of an activation
    Mask mask = {};
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<WriteMask>(at), chunks = chunks_of<T>(a.h), row = task / chunks;
    if (row >= a.rows) return;
    const std::int64_t chunk = task % chunks, first = chunk * kChunk<T>;
    const int count = chunk_size<T>(a.h, chunk);
    const bool activation = a.rows_of_sample == 0;
    Words words = a.mask.words(activation ? row % a.batch : row / a.rows_of_sample);
    const std::int64_t position = activation ? row / a.batch : row % a.rows_of_sample;
    Compute<T> x[kChunk<T>] = {};
    for (int i = 0; i < kChunk<T>; ++i)
      if (i < count) x[i] = static_cast<Compute<T>>(a.mask.of(words, a.mask.element(position, first + i)));
    store(a.out + row * a.h + first, count, x);
  }
};

}  // namespace megatron::kernels::phases
