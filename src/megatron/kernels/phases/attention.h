#pragma once
#include "megatron/kernels/phases/attention_tiles.h"

namespace megatron::kernels::phases {

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

}  // namespace megatron::kernels::phases
