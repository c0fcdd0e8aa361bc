#pragma once
#include "megatron/kernels/phases/attention_tiles.h"

namespace megatron::kernels::phases {

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
    const std::int64_t first = a.causal ? key_tile * kTile - (a.keys - a.queries) - a.ahead : 0;
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
