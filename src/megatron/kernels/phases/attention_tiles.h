#pragma once
#include <limits>

#include "megatron/kernels/phases/kernel.h"
#include "megatron/kernels/phases/mask.h"

// Exact attention by tiles of 32 queries and 32 keys: no array of queries x keys is ever made (Dao et al. 2022), no sum
// is taken by atomics. It serves what a library's kernels do not: dropout by our Philox, the first key of a packed
// document, a bias of distances with its gradient, every dtype.
namespace megatron::kernels::phases {

constexpr int kTile = 32;

/// Heads [s, b, n, d] by strides, the last contiguous; query heads as (group, one of the group).
struct Heads {
  Out data = {};
  std::int64_t stride_s = 0, stride_b = 0, stride_group = 0, stride_head = 0;

  MEGATRON_BOTH std::int64_t place(std::int64_t s, std::int64_t b, std::int64_t group, std::int64_t head) const {
    return s * stride_s + b * stride_b + group * stride_group + head * stride_head;
  }
};

template <class C>
struct AttentionArgs {
  Heads q, k, v, out;                                                           ///< k and v: head 0 of a group
  Heads dout, dq, dk, dv;                                                       ///< backward alone
  std::int64_t queries = 0, keys = 0, batch = 0, groups = 0, ratio = 1, d = 0;  ///< ratio query heads a group
  C scale = 1;
  bool causal = false;
  std::int64_t ahead = 0;
  const std::int32_t *first_key = nullptr, *key_lengths = nullptr;  ///< [b, queries], [b]
  const C* bias = nullptr;                                          ///< [n, queries + keys - 1]
  C *logsumexp = nullptr, *delta = nullptr, *dbias = nullptr;       ///< [b, n, queries] twice, and as bias
  Mask mask = {};
  std::int64_t mask_queries = 0;  ///< of the whole sequence, which the mask is drawn for

  MEGATRON_BOTH std::int64_t heads() const { return groups * ratio; }
  MEGATRON_BOTH std::int64_t row(std::int64_t b, std::int64_t n, std::int64_t i) const {
    return (b * heads() + n) * queries + i;
  }
  MEGATRON_BOTH bool sees(std::int64_t b, std::int64_t i, std::int64_t j) const {
    if (i >= queries || j >= keys || (causal && j > i + (keys - queries) + ahead)) return false;
    if (first_key != nullptr && j < first_key[b * queries + i]) return false;
    return key_lengths == nullptr || j < key_lengths[b];
  }
  MEGATRON_BOTH C score(std::int64_t n, std::int64_t i, std::int64_t j, C product) const {
    const C s = product * scale;
    return bias == nullptr ? s : s + bias[n * (queries + keys - 1) + j - i + queries - 1];
  }
  MEGATRON_BOTH C dropped(std::int64_t b, std::int64_t n, std::int64_t i, std::int64_t j) const {
    if (!mask.on) return C(1);
    Words words = mask.words(b);
    return static_cast<C>(mask.of(words, mask.element(n * mask_queries + i, j)));
  }
  MEGATRON_BOTH std::int64_t query_tiles() const { return (queries + kTile - 1) / kTile; }
  MEGATRON_BOTH std::int64_t key_tiles() const { return (keys + kTile - 1) / kTile; }
  /// Tiles of keys that some query of a tile sees.
  MEGATRON_BOTH int seen_tiles(std::int64_t query_tile) const {
    const std::int64_t last = (query_tile + 1) * kTile - 1 + keys - queries + ahead;
    const std::int64_t tiles = !causal ? key_tiles() : last < 0 ? 0 : last / kTile + 1;
    return static_cast<int>(tiles < key_tiles() ? tiles : key_tiles());
  }
};

/// Of a thread in a tile of 32 x 32: a row, and every fourth column.
constexpr int kAttentionThreads = 128, kEvery = 4, kOwn = kTile / kEvery;

template <class C, int kD>
using TileOf = C[kTile][kD + 1];

/// 32 rows of heads from `first` on, zeros past `rows` and `d`.
template <class C, int kD>
MEGATRON_BOTH void load_tile(TileOf<C, kD>& to, const Heads& from, int thread, std::int64_t first, std::int64_t rows,
                             std::int64_t d, std::int64_t b, std::int64_t group, std::int64_t head) {
  for (int e = thread; e < kTile * kD; e += kAttentionThreads) {
    const int r = e / kD, c = e % kD;
    const bool there = first + r < rows && c < d;
    to[r][c] = there ? read<C>(from.data, from.place(first + r, b, group, head) + c) : C(0);
  }
}

template <class C, int kD>
MEGATRON_BOTH C product(const C (&x)[kD + 1], const C (&y)[kD + 1]) {
  C sum = 0;
  for (int c = 0; c < kD; ++c) sum += x[c] * y[c];
  return sum;
}

/// The block's sample, query head and tile.
struct AttentionBlock {
  std::int64_t b, n, tile;
};
template <class C>
MEGATRON_BOTH AttentionBlock block_of(const AttentionArgs<C>& a, const At& at) {
  const std::int64_t tile = at.block % a.query_tiles(), rest = at.block / a.query_tiles();
  return {rest / a.heads(), rest % a.heads(), tile};
}

}  // namespace megatron::kernels::phases
