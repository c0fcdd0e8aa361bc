#pragma once
#include "megatron/kernels/phases/kernel.h"

namespace megatron::kernels::phases {

/// Rows of the weight, zeros for tokens of other ranks. A thread a chunk.
template <class T>
struct Embed : Straight {
  static constexpr int kThreads = 256, kPhases = 1;
  struct Args {
    const std::int64_t* tokens = nullptr;  ///< [n]
    const T* weight = nullptr;             ///< [v, h]
    T* out = nullptr;                      ///< [n, h]
    std::int64_t n = 0, v = 0, h = 0, begin = 0;
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<Embed>(at), chunks = chunks_of<T>(a.h), token = task / chunks;
    if (token >= a.n) return;
    const std::int64_t chunk = task % chunks, first = chunk * kChunk<T>, row = a.tokens[token] - a.begin;
    const int count = chunk_size<T>(a.h, chunk);
    Compute<T> x[kChunk<T>] = {};
    if (row >= 0 && row < a.v) load(a.weight + row * a.h + first, count, x);
    store(a.out + token * a.h + first, count, x);
  }
};

/// Adds the gradients of equal tokens in their order and then to the weight's. `tokens` are sorted, `order` says where
/// each was. A block has a place among them and a tile of columns; only the first of equal tokens computes.
template <class T>
struct EmbedGradient : Straight {
  static constexpr int kThreads = 128, kPhases = 1, kColumns = kThreads * kChunk<T>;
  struct Args {
    const std::int64_t *tokens = nullptr, *order = nullptr;  ///< [n]
    const T* dy = nullptr;                                   ///< [n, h]
    Out gradient = {};                                       ///< [v, h]
    std::int64_t n = 0, v = 0, h = 0, begin = 0;
  };
  using Shared = Nothing;
  using Local = Nothing;

  static MEGATRON_BOTH std::int64_t tiles(std::int64_t h) { return (h + kColumns - 1) / kColumns; }

  template <class C>
  static MEGATRON_BOTH void add(const Args& a, std::int64_t place, std::int64_t row, std::int64_t first) {
    const int count = chunk_size<T>(a.h, first / kChunk<T>);
    C sums[kChunk<T>] = {};
    for (int i = 0; i < kChunk<T>; ++i)
      if (i < count) sums[i] = read<C>(a.gradient, row * a.h + first + i);
    for (std::int64_t same = place; same < a.n && a.tokens[same] == a.tokens[place]; ++same) {
      Compute<T> dy[kChunk<T>];
      load(a.dy + a.order[same] * a.h + first, count, dy);
      for (int i = 0; i < kChunk<T>; ++i) sums[i] += static_cast<C>(dy[i]);
    }
    for (int i = 0; i < kChunk<T>; ++i)
      if (i < count) write(a.gradient, row * a.h + first + i, sums[i]);
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t place = at.block / tiles(a.h), tile = at.block % tiles(a.h);
    const std::int64_t first = tile * kColumns + at.thread * kChunk<T>, row = a.tokens[place] - a.begin;
    if (first >= a.h || row < 0 || row >= a.v) return;
    if (place > 0 && a.tokens[place - 1] == a.tokens[place]) return;
    if (a.gradient.type == DType::F64)
      add<double>(a, place, row, first);
    else
      add<float>(a, place, row, first);
  }
};

}  // namespace megatron::kernels::phases
