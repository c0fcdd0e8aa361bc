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
    Divisor chunks = {};  ///< of a row
  };
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<Embed>(at), token = a.chunks.of(task);
    if (token >= a.n) return;
    const std::int64_t chunk = task - token * a.chunks.by, first = chunk * kChunk<T>, row = a.tokens[token] - a.begin;
    const int count = chunk_size<T>(a.h, chunk);
    Chunk<T> x = {};
    if (row >= 0 && row < a.v) x = load_chunk(a.weight + row * a.h + first, count);
    store_chunk(a.out + token * a.h + first, count, x);
  }
};

/// Adds the gradients of equal tokens in their order and then to the weight's. `tokens` are sorted, `order` says where
/// each was. A block has a place among them and a tile of columns; only the first of equal tokens computes.
template <class T>
struct EmbedGradient : Straight {
  static constexpr int kThreads = 128, kPhases = 1, kColumns = kThreads * kChunk<T>, kAtOnce = 8;
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
    MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) if (i < count) sums[i] =
        read<C>(a.gradient, row * a.h + first + i);
    const std::int64_t token = a.tokens[place];
    for (std::int64_t same = place; same < a.n && a.tokens[same] == token; same += kAtOnce) {
      Chunk<T> stored[kAtOnce];  // asked for before the first is added
      MEGATRON_UNROLL for (int r = 0; r < kAtOnce; ++r) {
        stored[r] = {};
        if (same + r < a.n && a.tokens[same + r] == token)
          stored[r] = load_chunk(a.dy + a.order[same + r] * a.h + first, count);
      }
      MEGATRON_UNROLL for (int r = 0; r < kAtOnce; ++r) {
        Compute<T> dy[kChunk<T>];
        unpack(stored[r], dy);
        MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) sums[i] += static_cast<C>(dy[i]);
      }
    }
    MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) {
      if (i < count) write(a.gradient, row * a.h + first + i, sums[i]);
    }
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
