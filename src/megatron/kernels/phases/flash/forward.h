#pragma once
#include "megatron/kernels/phases/flash/tiles.h"

namespace megatron::kernels::phases {

/// A block has 128 queries of a head, a warp 32 of them, or of wide heads half as many: what is added up for 16 takes
/// 128 registers. Rounds over tiles of 64 keys. Values are loaded while products with keys are computed, and the next
/// keys while values are added up.
template <class T, int kD, bool kBias>
struct FlashForward {
  static constexpr int kWarps = 4, kBlocks = kD == 64 ? 3 : 2, kPhases = 4, kRepeatFrom = 1, kRepeatTo = 3;
  static constexpr int kTiles = kD > 128 ? 1 : 2, kWarpRows = 16 * kTiles, kRows = kWarps * kWarpRows, kKeys = 64;
  using Args = FlashArgs;
  struct Shared {
    SharedTile<T, kRows, kD> q;
    SharedTile<T, kKeys, kD> k, v;
    Interval seen[kRows];
    float bias[kBias ? kRows + kKeys : 1];
  };
  template <class W>
  struct Local {
    Products<W, kTiles, kD / 8> out;
    Products<W, kTiles, kKeys / 8> s;
    Number<W> max[2 * kTiles], sum[2 * kTiles];  ///< of products; sums of the lane's own keys
    Word<W> kept[kTiles];                        ///< bits 16 h + 4 (j / 2): of four keys
    Interval warp;                               ///< keys that the warp's queries see
    int first_tile, rounds;
    Task task;
  };

  static MEGATRON_BOTH std::int64_t tiles(const Args& a) { return (a.queries + kRows - 1) / kRows; }

  template <int kPhase, class W>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local<W>& own) {
    if constexpr (kPhase == 0) own.task = task_of(at, a.heads(), tiles(a));
    const QueryBlock<T> block(a, own.task, tiles(a), kRows);
    const auto& [b, n, group, head, first, k, v] = block;
    const int warp_row = at.thread * kWarpRows;
    const int key_tile = kPhase == 0 ? 0 : own.first_tile + at.round, key = key_tile * kKeys;
    const bool sees = kPhase != 0 && key < own.warp.to && key + kKeys > own.warp.from;
    if constexpr (kPhase == 0) {
      begin_copy<W, kWarps>(shared.q, at.thread, rows_of<const T>(a.q, b, group, head), a.q.stride_s, first, a.queries,
                            a.d, itself);
      block.template find_keys<W>(a, own, kRows, warp_row, kWarpRows, kKeys);
      if (own.rounds > 0)
        begin_copy<W, kWarps>(shared.k, at.thread, k, a.k.stride_s, std::int64_t{own.first_tile} * kKeys, a.keys, a.d,
                              key_of_row);
      own.out.clear();
      W::each([&](int lane) {
        if (lane < kWarpRows) shared.seen[warp_row + lane] = seen_by(a, b, first + warp_row + lane);
        MEGATRON_UNROLL
        for (int r = 0; r < 2 * kTiles; ++r) {
          own.max[r][lane] = -std::numeric_limits<float>::infinity();
          own.sum[r][lane] = 0;
        }
      });
      W::wait();
    } else if constexpr (kPhase == 1) {
      begin_copy<W, kWarps>(shared.v, at.thread, v, a.v.stride_s, key, a.keys, a.d, key_of_row);
      if constexpr (kBias) begin_copy_bias<W, kWarps>(a, shared.bias, at.thread, n, first, kRows, key, kKeys);
      if (sees) {
        if (a.mask.on) draw<W>(a, own, b, n, first + warp_row, key);
        own.s.clear();
        own.s.add(shared.q, warp_row, shared.k);
      }
      W::wait();
    } else if constexpr (kPhase == 2) {
      if (at.round + 1 < own.rounds)
        begin_copy<W, kWarps>(shared.k, at.thread, k, a.k.stride_s, key + kKeys, a.keys, a.d, key_of_row);
      if (sees) {
        softmax<W>(a, shared, own, warp_row, key);
        own.out.add(own.s, shared.v);
      }
      W::wait();
    } else {
      finish<W>(a, own, b, n, group, head, first + warp_row);
    }
  }

 private:
  template <class W>
  static MEGATRON_BOTH void draw(const Args& a, Local<W>& own, int b, int n, std::int64_t query, std::int64_t key) {
    const std::uint64_t sample = a.mask.sample(b);
    W::each([&](int lane) {
      MEGATRON_UNROLL
      for (int m = 0; m < kTiles; ++m) {
        std::uint32_t bits = 0;
        for (int h = 0; h < 2; ++h) {
          const std::uint64_t index = a.element(n, query + 16 * m + 8 * h + lane / 4, key + lane % 4 * 4);
          bits |= kept<W, kKeys / 16>(a.mask, sample, index, 16) << (16 * h);
        }
        own.kept[m][lane] = bits;
      }
    });
  }

  /// Element e of a lane's row r of a tile: key 16 (e / 4) + 4 (lane % 4) + e % 4.
  template <class W>
  static MEGATRON_BOTH float& score(Local<W>& own, int r, int e, int lane) {
    return own.s.at[r / 2][e / 2][r % 2 * 2 + e % 2][lane];
  }

  /// Scores become probabilities of the largest score so far, and what is summed is scaled to it.
  template <class W>
  static MEGATRON_BOTH void softmax(const Args& a, const Shared& shared, Local<W>& own, int warp_row, int key) {
    constexpr float kHidden = -std::numeric_limits<float>::infinity();
    constexpr int kLaneRows = 2 * kTiles, kOfRow = kKeys / 4;
    const float exponent = a.exponent();
    Number<W> max[kLaneRows];
    W::each([&](int lane) {
      if (a.cap > 0) {
        MEGATRON_UNROLL
        for (int e = 0; e < kLaneRows * kOfRow; ++e) {
          float& x = score<W>(own, e / kOfRow, e % kOfRow, lane);
          x = a.template capped<W>(x);
        }
      }
      if constexpr (kBias) {
        const float unscaled = 1 / a.scale;
        MEGATRON_UNROLL
        for (int e = 0; e < kLaneRows * kOfRow; ++e) {
          const int i = warp_row + 8 * (e / kOfRow) + lane / 4, k = e % kOfRow, j = k / 4 * 16 + lane % 4 * 4 + k % 4;
          score<W>(own, e / kOfRow, k, lane) += unscaled * shared.bias[j - i + kRows - 1];
        }
      }
      bool hides = false;
      MEGATRON_UNROLL
      for (int r = 0; r < kLaneRows; ++r) {
        const Interval seen = shared.seen[warp_row + 8 * r + lane / 4];
        hides = hides || seen.from > key || seen.to < key + kKeys;
      }
      if (hides) {
        MEGATRON_UNROLL
        for (int r = 0; r < kLaneRows; ++r) {
          const Interval seen = shared.seen[warp_row + 8 * r + lane / 4];
          MEGATRON_UNROLL
          for (int e = 0; e < kOfRow; ++e) {
            const int j = key + e / 4 * 16 + lane % 4 * 4 + e % 4;
            if (j < seen.from || j >= seen.to) score<W>(own, r, e, lane) = kHidden;
          }
        }
      }
      MEGATRON_UNROLL
      for (int r = 0; r < kLaneRows; ++r) {
        max[r][lane] = own.max[r][lane];
        MEGATRON_UNROLL
        for (int e = 0; e < kOfRow; ++e) max[r][lane] = W::larger(max[r][lane], score<W>(own, r, e, lane));
      }
    });
    MEGATRON_UNROLL
    for (int r = 0; r < kLaneRows; ++r) reduce<W, float>(max[r], 4, [](float x, float y) { return W::larger(x, y); });
    W::each([&](int lane) {
      float correction[kLaneRows];
      bool same = true;
      MEGATRON_UNROLL
      for (int r = 0; r < kLaneRows; ++r) {
        const float shift = max[r][lane] == kHidden ? 0 : max[r][lane] * exponent;
        correction[r] = W::exp2(own.max[r][lane] * exponent - shift);
        same = same && correction[r] == 1;
        own.max[r][lane] = max[r][lane];
        float sum = own.sum[r][lane] * correction[r];
        const std::uint32_t bits = a.mask.on ? own.kept[r / 2][lane] >> (r % 2 * kOfRow) : ~0U;
        MEGATRON_UNROLL
        for (int e = 0; e < kOfRow; ++e) {
          float& x = score<W>(own, r, e, lane);
          x = W::exp2(x * exponent - shift);
          sum += x;
          x = (bits >> e & 1U) != 0 ? x : 0;
        }
        own.sum[r][lane] = sum;
      }
      if (!same) {
        MEGATRON_UNROLL
        for (int r = 0; r < kLaneRows; ++r) MEGATRON_UNROLL
        for (int j = 0; j < kD / 4; ++j) own.out.at[r / 2][j / 2][r % 2 * 2 + j % 2][lane] *= correction[r];
      }
    });
  }

  template <class W>
  static MEGATRON_BOTH void finish(const Args& a, Local<W>& own, int b, int n, int group, int head,
                                   std::int64_t query) {
    MEGATRON_UNROLL
    for (int r = 0; r < 2 * kTiles; ++r) reduce<W, float>(own.sum[r], 4, [](float x, float y) { return x + y; });
    const float factor = a.mask.on ? static_cast<float>(a.mask.factor) : 1;
    write_rows<W, T>(own.out, rows_of<T>(a.out, b, group, head), a.out.stride_s, query, a.queries, a.d, itself,
                     [&](int m, int h, int lane) {
                       const float sum = own.sum[2 * m + h][lane];
                       return sum == 0 ? 0 : factor * W::inverse(sum);  // of a NaN NaN
                     });
    W::each([&](int lane) {
      MEGATRON_UNROLL
      for (int r = 0; r < 2 * kTiles; ++r) {
        const std::int64_t i = query + 8 * r + lane / 4;
        const float sum = own.sum[r][lane];
        if (lane % 4 == 0 && i < a.queries)
          a.logsumexp[a.row(b, n, i)] = sum == 0 ? -std::numeric_limits<float>::infinity()
                                                 : (own.max[r][lane] * a.exponent() + W::log2(sum)) * kLn2;
      }
    });
  }
};

}  // namespace megatron::kernels::phases
