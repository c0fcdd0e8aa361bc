#pragma once
#include <limits>

#include "megatron/kernels/phases/kernel.h"

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
  const std::int32_t *first_key = nullptr, *key_lengths = nullptr;  ///< [b, queries], [b]
  const C* bias = nullptr;                                          ///< [n, queries + keys - 1]
  C *logsumexp = nullptr, *delta = nullptr, *dbias = nullptr;       ///< [b, n, queries] twice, and as bias
  Mask mask = {};

  MEGATRON_BOTH std::int64_t heads() const { return groups * ratio; }
  MEGATRON_BOTH std::int64_t row(std::int64_t b, std::int64_t n, std::int64_t i) const {
    return (b * heads() + n) * queries + i;
  }
  MEGATRON_BOTH bool sees(std::int64_t b, std::int64_t i, std::int64_t j) const {
    if (i >= queries || j >= keys || (causal && j > i + (keys - queries))) return false;
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
    return static_cast<C>(mask.of(words, mask.element(n * queries + i, j)));
  }
  MEGATRON_BOTH std::int64_t query_tiles() const { return (queries + kTile - 1) / kTile; }
  MEGATRON_BOTH std::int64_t key_tiles() const { return (keys + kTile - 1) / kTile; }
  /// Tiles of keys that some query of a tile sees.
  MEGATRON_BOTH int seen_tiles(std::int64_t query_tile) const {
    const std::int64_t last = (query_tile + 1) * kTile - 1 + keys - queries;
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

template <class C, int kD>
struct AttentionForward {
  static constexpr int kThreads = kAttentionThreads, kPhases = 6, kRepeatFrom = 1, kRepeatTo = 5;
  using Args = AttentionArgs<C>;
  struct Shared {
    TileOf<C, kD> q, k, v;
    C p[kTile][kTile + 1], max[kTile][kEvery], sum[kTile][kEvery];
  };
  struct Local {
    C out[kD / kEvery], s[kOwn], max, sum, correction;
  };

  static MEGATRON_BOTH int repeats(const Args& a, std::int64_t block) { return a.seen_tiles(block % a.query_tiles()); }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local& own) {
    const auto [b, n, tile] = block_of(a, at);
    const std::int64_t group = n / a.ratio, key = std::int64_t{at.round} * kTile;
    const int row = at.thread / kEvery, lane = at.thread % kEvery;
    const std::int64_t query = tile * kTile + row;
    constexpr C kHidden = -std::numeric_limits<C>::infinity();
    if constexpr (kPhase == 0) {
      load_tile<C, kD>(shared.q, a.q, at.thread, tile * kTile, a.queries, a.d, b, group, n % a.ratio);
      for (int e = 0; e < kD / kEvery; ++e) own.out[e] = C(0);
      own.max = kHidden;
      own.sum = C(0);
    } else if constexpr (kPhase == 1) {
      load_tile<C, kD>(shared.k, a.k, at.thread, key, a.keys, a.d, b, group, 0);
      load_tile<C, kD>(shared.v, a.v, at.thread, key, a.keys, a.d, b, group, 0);
    } else if constexpr (kPhase == 2) {
      C max = kHidden;
      for (int e = 0; e < kOwn; ++e) {
        const int column = lane + e * kEvery;
        own.s[e] = a.sees(b, query, key + column)
                       ? a.score(n, query, key + column, product<C, kD>(shared.q[row], shared.k[column]))
                       : kHidden;
        if (max < own.s[e]) max = own.s[e];
      }
      shared.max[row][lane] = max;
    } else if constexpr (kPhase == 3) {
      C max = own.max, sum = 0;
      for (int e = 0; e < kEvery; ++e)
        if (max < shared.max[row][e]) max = shared.max[row][e];
      for (int e = 0; e < kOwn; ++e) {
        const int column = lane + e * kEvery;
        const C p = own.s[e] == kHidden ? C(0) : std::exp(own.s[e] - max);
        sum += p;
        shared.p[row][column] = p == C(0) ? C(0) : p * a.dropped(b, n, query, key + column);
      }
      own.correction = own.max == kHidden ? C(0) : std::exp(own.max - max);
      own.max = max;
      shared.sum[row][lane] = sum;
    } else if constexpr (kPhase == 4) {
      C sum = own.sum * own.correction;
      for (int e = 0; e < kEvery; ++e) sum += shared.sum[row][e];
      own.sum = sum;
      for (int e = 0; e < kD / kEvery; ++e) {
        C out = own.out[e] * own.correction;
        for (int j = 0; j < kTile; ++j) out += shared.p[row][j] * shared.v[j][lane + e * kEvery];
        own.out[e] = out;
      }
    } else {
      if (query >= a.queries) return;
      for (int e = 0; e < kD / kEvery; ++e)
        if (lane + e * kEvery < a.d)
          write(a.out.data, a.out.place(query, b, group, n % a.ratio) + lane + e * kEvery,
                own.sum > C(0) ? own.out[e] / own.sum : C(0));
      if (lane == 0) a.logsumexp[a.row(b, n, query)] = own.sum > C(0) ? own.max + std::log(own.sum) : kHidden;
    }
  }
};

/// delta[b, n, i] = dout . out. A thread a row.
template <class C>
struct AttentionDelta : Straight {
  static constexpr int kThreads = 128, kPhases = 1;
  using Args = AttentionArgs<C>;
  using Shared = Nothing;
  using Local = Nothing;

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    const std::int64_t task = task_of<AttentionDelta>(at), i = task % a.queries, rest = task / a.queries;
    if (rest >= a.batch * a.heads()) return;
    const std::int64_t b = rest / a.heads(), n = rest % a.heads();
    const std::int64_t one = a.dout.place(i, b, n / a.ratio, n % a.ratio),
                       other = a.out.place(i, b, n / a.ratio, n % a.ratio);
    C sum = 0;
    for (std::int64_t c = 0; c < a.d; ++c) sum += read<C>(a.dout.data, one + c) * read<C>(a.out.data, other + c);
    a.delta[task] = sum;
  }
};

/// What both directions of the backward pass compute of a tile again: probabilities as dropout left them, and the
/// gradients of the scores.
template <class C, int kD>
struct GradientTile {
  TileOf<C, kD> q, k, v, dout;
  C p[kTile][kTile + 1], ds[kTile][kTile + 1];

  MEGATRON_BOTH void compute(const AttentionArgs<C>& a, int thread, std::int64_t b, std::int64_t n,
                             std::int64_t query_tile, std::int64_t key_tile) {
    const int r = thread / kEvery, lane = thread % kEvery;
    const std::int64_t i = query_tile * kTile + r;
    for (int e = 0; e < kOwn; ++e) {
      const int column = lane + e * kEvery;
      const std::int64_t j = key_tile * kTile + column;
      C probability = 0, gradient = 0;
      if (a.sees(b, i, j)) {
        const std::int64_t row = a.row(b, n, i);
        const C undropped = std::exp(a.score(n, i, j, product<C, kD>(q[r], k[column])) - a.logsumexp[row]);
        const C factor = a.dropped(b, n, i, j);
        probability = undropped * factor;
        gradient = undropped * (product<C, kD>(dout[r], v[column]) * factor - a.delta[row]);
      }
      p[r][column] = probability;
      ds[r][column] = gradient;
    }
  }
};

/// dq. A block a tile of queries of a head; rounds over the keys.
template <class C, int kD>
struct AttentionQueryGradient {
  static constexpr int kThreads = kAttentionThreads, kPhases = 5, kRepeatFrom = 1, kRepeatTo = 4;
  using Args = AttentionArgs<C>;
  using Shared = GradientTile<C, kD>;
  struct Local {
    C dq[kD / kEvery];
  };

  static MEGATRON_BOTH int repeats(const Args& a, std::int64_t block) { return a.seen_tiles(block % a.query_tiles()); }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local& own) {
    const auto [b, n, tile] = block_of(a, at);
    const std::int64_t group = n / a.ratio, first = tile * kTile, key = std::int64_t{at.round} * kTile;
    const int row = at.thread / kEvery, lane = at.thread % kEvery;
    if constexpr (kPhase == 0) {
      load_tile<C, kD>(shared.q, a.q, at.thread, first, a.queries, a.d, b, group, n % a.ratio);
      load_tile<C, kD>(shared.dout, a.dout, at.thread, first, a.queries, a.d, b, group, n % a.ratio);
      for (int e = 0; e < kD / kEvery; ++e) own.dq[e] = C(0);
    } else if constexpr (kPhase == 1) {
      load_tile<C, kD>(shared.k, a.k, at.thread, key, a.keys, a.d, b, group, 0);
      load_tile<C, kD>(shared.v, a.v, at.thread, key, a.keys, a.d, b, group, 0);
    } else if constexpr (kPhase == 2) {
      shared.compute(a, at.thread, b, n, tile, at.round);
    } else if constexpr (kPhase == 3) {
      for (int e = 0; e < kD / kEvery; ++e) {
        C sum = own.dq[e];
        for (int j = 0; j < kTile; ++j) sum += shared.ds[row][j] * shared.k[j][lane + e * kEvery];
        own.dq[e] = sum;
      }
    } else {
      if (first + row >= a.queries) return;
      for (int e = 0; e < kD / kEvery; ++e)
        if (lane + e * kEvery < a.d)
          write(a.dq.data, a.dq.place(first + row, b, group, n % a.ratio) + lane + e * kEvery, own.dq[e] * a.scale);
    }
  }
};

/// dk and dv. A block a tile of keys of a group; rounds over its heads and their queries.
template <class C, int kD>
struct AttentionKeyGradient {
  static constexpr int kThreads = kAttentionThreads, kPhases = 5, kRepeatFrom = 1, kRepeatTo = 4;
  using Args = AttentionArgs<C>;
  using Shared = GradientTile<C, kD>;
  struct Local {
    C dk[kD / kEvery], dv[kD / kEvery];
  };

  /// The first tile of queries that see keys of a tile.
  static MEGATRON_BOTH std::int64_t first_tile(const Args& a, std::int64_t key_tile) {
    const std::int64_t first = a.causal ? key_tile * kTile - (a.keys - a.queries) : 0;
    return first > 0 ? first / kTile : 0;
  }
  static MEGATRON_BOTH int repeats(const Args& a, std::int64_t block) {
    const std::int64_t left = a.query_tiles() - first_tile(a, block % a.key_tiles());
    return left > 0 ? static_cast<int>(left * a.ratio) : 0;
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local& own) {
    const std::int64_t tile = at.block % a.key_tiles(), rest = at.block / a.key_tiles();
    const std::int64_t b = rest / a.groups, group = rest % a.groups, first = tile * kTile;
    const int row = at.thread / kEvery, lane = at.thread % kEvery;
    const std::int64_t from = first_tile(a, tile), tiles = a.query_tiles() > from ? a.query_tiles() - from : 1;
    const std::int64_t head = at.round / tiles, query_tile = from + at.round % tiles;
    if constexpr (kPhase == 0) {
      load_tile<C, kD>(shared.k, a.k, at.thread, first, a.keys, a.d, b, group, 0);
      load_tile<C, kD>(shared.v, a.v, at.thread, first, a.keys, a.d, b, group, 0);
      for (int e = 0; e < kD / kEvery; ++e) own.dk[e] = own.dv[e] = C(0);
    } else if constexpr (kPhase == 1) {
      load_tile<C, kD>(shared.q, a.q, at.thread, query_tile * kTile, a.queries, a.d, b, group, head);
      load_tile<C, kD>(shared.dout, a.dout, at.thread, query_tile * kTile, a.queries, a.d, b, group, head);
    } else if constexpr (kPhase == 2) {
      shared.compute(a, at.thread, b, group * a.ratio + head, query_tile, tile);
    } else if constexpr (kPhase == 3) {
      for (int e = 0; e < kD / kEvery; ++e) {
        C dk = own.dk[e], dv = own.dv[e];
        for (int i = 0; i < kTile; ++i) {
          dk += shared.ds[i][row] * shared.q[i][lane + e * kEvery];
          dv += shared.p[i][row] * shared.dout[i][lane + e * kEvery];
        }
        own.dk[e] = dk;
        own.dv[e] = dv;
      }
    } else {
      if (first + row >= a.keys) return;
      for (int e = 0; e < kD / kEvery; ++e) {
        const int column = lane + e * kEvery;
        if (column >= a.d) continue;
        write(a.dk.data, a.dk.place(first + row, b, group, 0) + column, own.dk[e] * a.scale);
        write(a.dv.data, a.dv.place(first + row, b, group, 0) + column, own.dv[e]);
      }
    }
  }
};

/// The gradient of the bias: of a head and a distance the sum over all pairs. A block for each.
template <class C>
struct AttentionBiasGradient : Straight {
  static constexpr int kThreads = 128, kPhases = 3;
  using Args = AttentionArgs<C>;
  struct Shared {
    BlockSum<C, kThreads> sum;
  };
  using Local = Nothing;

  static MEGATRON_BOTH C product_of(const Args& a, const Heads& one, std::int64_t place, const Heads& other,
                                    std::int64_t other_place) {
    C sum = 0;
    for (std::int64_t c = 0; c < a.d; ++c) sum += read<C>(one.data, place + c) * read<C>(other.data, other_place + c);
    return sum;
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    const std::int64_t distances = a.queries + a.keys - 1, n = at.block / distances, distance = at.block % distances;
    if constexpr (kPhase == 0) {
      C sum = 0;
      for (std::int64_t task = at.thread; task < a.batch * a.queries; task += kThreads) {
        const std::int64_t b = task / a.queries, i = task % a.queries, j = distance + i - (a.queries - 1);
        if (j < 0 || !a.sees(b, i, j)) continue;
        const std::int64_t group = n / a.ratio, head = n % a.ratio, row = a.row(b, n, i);
        const C s = product_of(a, a.q, a.q.place(i, b, group, head), a.k, a.k.place(j, b, group, 0));
        const C dp = product_of(a, a.dout, a.dout.place(i, b, group, head), a.v, a.v.place(j, b, group, 0));
        const C p = std::exp(a.score(n, i, j, s) - a.logsumexp[row]);
        sum += p * (dp * a.dropped(b, n, i, j) - a.delta[row]);
      }
      shared.sum.part[at.thread] = sum;
    } else if constexpr (kPhase == 1) {
      shared.sum.fold(at.thread);
    } else {
      if (at.thread == 0) a.dbias[at.block] = shared.sum.total();
    }
  }
};

}  // namespace megatron::kernels::phases
