#pragma once
#include <limits>

#include "megatron/kernels/phases/attention_tiles.h"
#include "megatron/kernels/phases/flash/warp.h"
#include "megatron/kernels/phases/mask.h"

// Exact attention on tensor cores for 16 bits (Dao 2023): scores in registers, no atomics. Where a query sees keys is
// an interval of them, so that tiles which no query of a block sees are never loaded.
namespace megatron::kernels::phases {

inline constexpr float kLog2E = 1.44269504088896340736F, kLn2 = 0.69314718055994530942F;

struct FlashArgs : AttentionArgs<float> {
  float cap = 0;             ///< scaled scores x are cap tanh(x / cap); 0: x. Not with a bias
  float* partial = nullptr;  ///< of FlashBiasGradient

  /// Scores to the base 2 are products times this, and where there is a cap, capped() times it.
  MEGATRON_BOTH float exponent() const { return (cap > 0 ? cap : scale) * kLog2E; }
  template <class W>
  MEGATRON_BOTH float capped(float product) const {
    return 1 - 2 * W::inverse(1 + W::exp2(product * (scale / cap * (2 * kLog2E))));
  }
  /// Number of dropout's element for head n, query i and key j.
  MEGATRON_BOTH std::uint64_t element(std::int64_t n, std::int64_t i, std::int64_t j) const {
    return static_cast<std::uint64_t>((mask.position_offset + n * mask_queries + i) * mask.features +
                                      mask.feature_offset + j);
  }
};

/// Keys from `from` to `to` - 1.
struct Interval {
  int from, to;
  static constexpr int kEmpty = std::numeric_limits<int>::max();  ///< `from` where there are none
};

MEGATRON_BOTH Interval seen_by(const FlashArgs& a, std::int64_t b, std::int64_t i) {
  if (i >= a.queries) return {Interval::kEmpty, 0};
  std::int64_t to = a.keys;
  if (a.causal && i + (a.keys - a.queries) + a.ahead + 1 < to) to = i + (a.keys - a.queries) + a.ahead + 1;
  if (a.key_lengths != nullptr && a.key_lengths[b] < to) to = a.key_lengths[b];
  int from = a.first_key != nullptr ? a.first_key[b * a.queries + i] : 0;
  if (from < 0) from = 0;
  if (to <= from) return {Interval::kEmpty, 0};
  return {from, static_cast<int>(to)};
}

/// The smallest interval around those of `rows` queries from `first` on.
template <class W>
MEGATRON_BOTH Interval seen_by_rows(const FlashArgs& a, std::int64_t b, std::int64_t first, int rows) {
  typename W::template Lanes<int> from, to;
  W::each([&](int lane) {
    from[lane] = Interval::kEmpty;
    to[lane] = 0;
    for (int r = lane; r < rows; r += 32) {
      const Interval seen = seen_by(a, b, first + r);
      if (seen.from < from[lane]) from[lane] = seen.from;
      if (seen.to > to[lane]) to[lane] = seen.to;
    }
  });
  reduce<W, int>(from, 32, [](int x, int y) { return x < y ? x : y; });
  reduce<W, int>(to, 32, [](int x, int y) { return x > y ? x : y; });
  return {from[0], to[0]};
}

/// What a block of threads computes: sample b, head n (or group) and tile.
struct Task {
  int b, n, tile;
};
MEGATRON_BOTH Task task_of(const At& at, std::int64_t heads, std::int64_t tiles) {
  const auto block = static_cast<std::uint32_t>(at.block), tile = block / static_cast<std::uint32_t>(tiles),
             sample = tile / static_cast<std::uint32_t>(heads);
  return {static_cast<int>(sample), static_cast<int>(tile - sample * static_cast<std::uint32_t>(heads)),
          static_cast<int>(block - tile * static_cast<std::uint32_t>(tiles))};
}

/// philox() of base/philox.h, by products of 32 bits.
template <class W>
MEGATRON_BOTH PhiloxWords draw_words(std::uint64_t key, std::uint64_t block, std::uint64_t sample) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  auto c0 = static_cast<std::uint32_t>(block), c1 = static_cast<std::uint32_t>(block >> 32),
       c2 = static_cast<std::uint32_t>(sample), c3 = static_cast<std::uint32_t>(sample >> 32);
  MEGATRON_UNROLL
  for (int round = 0; round < 10; ++round) {
    std::uint32_t low0, high0, low1, high1;
    W::multiply(0xD2511F53U, c0, low0, high0);
    W::multiply(0xCD9E8D57U, c2, low1, high1);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {c0, c1, c2, c3};
}

/// Which of the elements of a block of four dropout keeps.
template <class W>
MEGATRON_BOTH std::uint32_t kept_of_block(std::uint64_t key, std::uint64_t sample, std::uint64_t block,
                                          std::uint32_t threshold) {
  const PhiloxWords words = draw_words<W>(key, block, sample);
  std::uint32_t bits = 0;
  MEGATRON_UNROLL
  for (int e = 0; e < 4; ++e) bits |= words[static_cast<std::size_t>(e)] >= threshold ? 1U << e : 0U;
  return bits;
}
/// Bit 4 j + e: of element `index` + j `step` + e, where the step is a multiple of 4. One call of Philox for four where
/// the index is one too.
template <class W, int kCount>
MEGATRON_BOTH std::uint32_t kept(const Mask& mask, std::uint64_t sample, std::uint64_t index, std::uint64_t step) {
  const std::uint64_t key = W::afresh(mask.key), stream = W::afresh(sample);  // or ten rounds' keys stay in registers
  const auto shift = static_cast<std::uint32_t>(index % 4);
  std::uint64_t block = index / 4;
  std::uint32_t all = 0;
  if (shift == 0) {
    MEGATRON_UNROLL_BY(2)
    for (int j = 0; j < kCount; ++j, block += step / 4)
      all |= kept_of_block<W>(key, stream, block, mask.threshold) << (4 * j);
    return all;
  }
  MEGATRON_UNROLL_BY(1)
  for (int j = 0; j < kCount; ++j, block += step / 4) {
    const std::uint32_t bits = kept_of_block<W>(key, stream, block, mask.threshold) |
                               kept_of_block<W>(key, stream, block + 1, mask.threshold) << 4;
    all |= (bits >> shift & 15U) << (4 * j);
  }
  return all;
}

/// Which key of a tile is its row: the two times two elements that a lane has of 16 keys are four neighbours.
MEGATRON_BOTH int key_of_row(int row) { return (row & ~15) | (row & 6) << 1 | (row & 8) >> 2 | (row & 1); }
/// key_of_row() for keys as rows of products, of which a lane has rows g and g + 8: two neighbours.
MEGATRON_BOTH int key_of_product_row(int row) { return (row & ~15) | (row & 7) << 1 | (row & 8) >> 3; }
MEGATRON_BOTH int itself(int row) { return row; }

template <class T>
MEGATRON_BOTH T* rows_of(const Heads& heads, std::int64_t b, std::int64_t group, std::int64_t head) {
  return static_cast<T*>(heads.data.data) + heads.place(0, b, group, head);
}

/// Where a block of `rows` queries of a head is.
template <class T>
struct QueryBlock {
  int b, n, group, head;  ///< head: of the group
  std::int64_t first;     ///< query
  const T *k, *v;

  /// Blocks come in descending order of queries: the longest first where causal.
  MEGATRON_BOTH QueryBlock(const FlashArgs& a, const Task& task, std::int64_t tiles, std::int64_t rows)
      : b(task.b),
        n(task.n),
        group(static_cast<int>(a.ratio) == 1 ? n : n / static_cast<int>(a.ratio)),
        head(n - group * static_cast<int>(a.ratio)),
        first((tiles - 1 - task.tile) * rows),
        k(rows_of<const T>(a.k, b, group, 0)),
        v(rows_of<const T>(a.v, b, group, 0)) {}

  /// Which tiles of `keys` the block's queries see, and which keys the warp's.
  template <class W, class Local>
  MEGATRON_BOTH void find_keys(const FlashArgs& a, Local& own, int rows, int warp_row, int warp_rows, int keys) const {
    const Interval seen = seen_by_rows<W>(a, b, first, rows);
    own.warp = seen_by_rows<W>(a, b, first + warp_row, warp_rows);
    own.first_tile = seen.to > 0 ? seen.from / keys : 0;
    own.rounds = seen.to > 0 ? (seen.to + keys - 1) / keys - own.first_tile : 0;
  }
};

/// Begins to copy rows `first` + row_of(row) to a tile, zeros past `rows` and `d`. row_of moves bits.
template <class W, int kWarps, class T, int kRows, int kD, class RowOf>
MEGATRON_BOTH void begin_copy(SharedTile<T, kRows, kD>& to, int warp, const T* from, std::int64_t stride,
                              std::int64_t first, std::int64_t rows, std::int64_t d, const RowOf& row_of) {
  constexpr int kChunks = kD / 8, kStep = 32 * kWarps / kChunks;
  static_assert(kRows % kStep == 0);
  W::each_afresh([&](int lane) {
    const int row = (32 * warp + lane) / kChunks, c = lane % kChunks;
    const std::int64_t source = first + row_of(row), left = 8 * c < d ? rows - source : 0;
    const T* at = from + source * stride + 8 * c;
    T* chunk = to.chunk(row, c);
    MEGATRON_UNROLL
    for (int further = 0; further < kRows; further += kStep) {
      T* const place = kStep % 8 == 0 ? chunk + further * kD : to.chunk(row + further, c);
      W::copy(place, at + row_of(further) * stride, row_of(further) < left);
    }
  });
}

/// Begins to copy the bias of `rows` queries from `query` on and `keys` keys from `key` on: of query i and key j, both
/// counted from there, it is to[j - i + rows - 1].
template <class W, int kWarps>
MEGATRON_BOTH void begin_copy_bias(const FlashArgs& a, float* to, int warp, std::int64_t n, std::int64_t query,
                                   int rows, std::int64_t key, int keys) {
  const std::int64_t distances = a.queries + a.keys - 1, first = key - query - rows + a.queries;
  W::each([&](int lane) {
    for (int e = 32 * warp + lane; e < rows + keys - 1; e += 32 * kWarps)
      W::copy_word(to + e, a.bias + n * distances + first + e, first + e >= 0 && first + e < distances);
  });
}

/// Writes a warp's 16 x kD sums times `factor` of their row, to row row_of(row) of those from `first` on.
template <class W, class T, int kTiles, int kColumns, class RowOf, class Factor>
MEGATRON_BOTH void write_rows(const Products<W, kTiles, kColumns>& x, T* to, std::int64_t stride, std::int64_t first,
                              std::int64_t rows, std::int64_t d, const RowOf& row_of, const Factor& factor) {
  W::each([&](int lane) {
    MEGATRON_UNROLL
    for (int m = 0; m < kTiles; ++m) MEGATRON_UNROLL
    for (int h = 0; h < 2; ++h) {
      const std::int64_t row = first + row_of(16 * m + 8 * h + lane / 4);
      if (row >= rows) continue;
      const float by = factor(m, h, lane);
      MEGATRON_UNROLL
      for (int j = 0; j < kColumns; ++j)
        if (8 * j < d)
          *reinterpret_cast<std::uint32_t*>(to + row * stride + 8 * j + lane % 4 * 2) =
              W::template pack<T>(x.at[m][j][2 * h][lane] * by, x.at[m][j][2 * h + 1][lane] * by);
    }
  });
}

}  // namespace megatron::kernels::phases
