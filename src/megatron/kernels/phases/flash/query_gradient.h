#pragma once
#include "megatron/kernels/phases/flash/tiles.h"

namespace megatron::kernels::phases {

/// delta[b, n, i] = dout . out. Sixteen lanes a row, 128 of its features at once, four rows after another.
template <class T>
struct FlashDelta {
  static constexpr int kWarps = 4, kBlocks = 8, kPhases = 1, kRepeatFrom = 0, kRepeatTo = 0, kRows = 8 * kWarps;
  using Args = FlashArgs;
  using Shared = Nothing;
  template <class W>
  struct Local {
    int rounds;
  };

  static std::int64_t blocks(const Args& a) { return (a.batch * a.heads() * a.queries + kRows - 1) / kRows; }

  template <int kPhase, class W>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local<W>&) {
    MEGATRON_UNROLL
    for (int part = 0; part < 4; ++part) {
      const std::int64_t first = at.block * kRows + at.thread * 8 + part * 2, rows = a.batch * a.heads() * a.queries;
      Number<W> sum;
      W::each([&](int lane) {
        const std::int64_t row = first + lane / 16, i = row % a.queries, rest = row / a.queries, b = rest / a.heads(),
                           n = rest % a.heads();
        sum[lane] = 0;
        if (row >= rows) return;
        MEGATRON_UNROLL_BY(1)
        for (std::int64_t c = lane % 16 * 8; c < a.d; c += 128) {
          const auto chunk = [&](const Heads& of) {
            return load_chunk(rows_of<const T>(of, b, n / a.ratio, n % a.ratio) + i * of.stride_s + c, kChunk<T>);
          };
          float x[kChunk<T>], y[kChunk<T>];
          unpack(chunk(a.dout), x);
          unpack(chunk(a.out), y);
          MEGATRON_UNROLL
          for (int e = 0; e < kChunk<T>; e += 2) sum[lane] += x[e] * y[e] + x[e + 1] * y[e + 1];
        }
      });
      reduce<W, float>(sum, 16, [](float x, float y) { return x + y; });
      W::each([&](int lane) {
        const std::int64_t row = first + lane / 16;
        if (lane % 16 == 0 && row < rows) a.delta[row] = sum[lane];
      });
    }
  }
};

/// dq. A block has 128 queries of a head, a warp 32 of them, or of wide heads half as many; rounds over tiles of 32
/// keys. Products of dout and values are taken while keys are loaded, the next values loaded while all else is
/// computed.
template <class T, int kD, bool kBias>
struct FlashQueryGradient {
  static constexpr int kWarps = 4, kBlocks = kD == 64 ? 3 : 2, kPhases = 4, kRepeatFrom = 1, kRepeatTo = 3;
  static constexpr int kTiles = kD > 128 ? 1 : 2, kWarpRows = 16 * kTiles, kRows = kWarps * kWarpRows, kKeys = 32;
  using Args = FlashArgs;
  struct Shared {
    SharedTile<T, kRows, kD> q, dout;
    SharedTile<T, kKeys, kD> k, v;
    Interval seen[kRows];
    float logsumexp[kRows], delta[kRows];  ///< to the base 2
    float bias[kBias ? kRows + kKeys : 1];
  };
  template <class W>
  struct Local {
    Products<W, kTiles, kD / 8> dq;
    Products<W, kTiles, kKeys / 8> s, dp;
    Word<W> kept;   ///< bits 16 m + 8 h + 4 (j / 2): of four keys
    Interval warp;  ///< keys that the warp's queries see
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
    const int key = kPhase == 0 ? 0 : (own.first_tile + at.round) * kKeys;
    const bool sees = kPhase != 0 && key < own.warp.to && key + kKeys > own.warp.from;
    if constexpr (kPhase == 0) {
      begin_copy<W, kWarps>(shared.q, at.thread, rows_of<const T>(a.q, b, group, head), a.q.stride_s, first, a.queries,
                            a.d, itself);
      begin_copy<W, kWarps>(shared.dout, at.thread, rows_of<const T>(a.dout, b, group, head), a.dout.stride_s, first,
                            a.queries, a.d, itself);
      block.template find_keys<W>(a, own, kRows, warp_row, kWarpRows, kKeys);
      if (own.rounds > 0)
        begin_copy<W, kWarps>(shared.v, at.thread, v, a.v.stride_s, std::int64_t{own.first_tile} * kKeys, a.keys, a.d,
                              key_of_row);
      own.dq.clear();
      W::each([&](int lane) {
        const std::int64_t i = first + warp_row + lane;
        if (lane >= kWarpRows) return;
        shared.seen[warp_row + lane] = seen_by(a, b, i);
        shared.logsumexp[warp_row + lane] = i < a.queries ? a.logsumexp[a.row(b, n, i)] * kLog2E : 0;
        shared.delta[warp_row + lane] = i < a.queries ? a.delta[a.row(b, n, i)] : 0;
      });
      W::wait();
    } else if constexpr (kPhase == 1) {
      begin_copy<W, kWarps>(shared.k, at.thread, k, a.k.stride_s, key, a.keys, a.d, key_of_row);
      if constexpr (kBias) begin_copy_bias<W, kWarps>(a, shared.bias, at.thread, n, first, kRows, key, kKeys);
      if (sees) {
        if (a.mask.on) draw<W>(a, own, b, n, first + warp_row, key);
        own.dp.clear();
        own.dp.add(shared.dout, warp_row, shared.v);
      }
      W::wait();
    } else if constexpr (kPhase == 2) {
      if (at.round + 1 < own.rounds)
        begin_copy<W, kWarps>(shared.v, at.thread, v, a.v.stride_s, key + kKeys, a.keys, a.d, key_of_row);
      if (sees) {
        own.s.clear();
        own.s.add(shared.q, warp_row, shared.k);
        gradient<W>(a, shared, own, warp_row, key);
        own.dq.add(own.dp, shared.k);
      }
      W::wait();
    } else {
      write_rows<W, T>(own.dq, rows_of<T>(a.dq, b, group, head), a.dq.stride_s, first + warp_row, a.queries, a.d,
                       itself, [&](int, int, int) { return a.scale; });
    }
  }

 private:
  template <class W>
  static MEGATRON_BOTH void draw(const Args& a, Local<W>& own, int b, int n, std::int64_t query, std::int64_t key) {
    const std::uint64_t sample = a.mask.sample(b);
    W::each([&](int lane) {
      std::uint32_t bits = 0;
      for (int r = 0; r < 2 * kTiles; ++r) {
        const std::uint64_t index = a.element(n, query + 8 * r + lane / 4, key + lane % 4 * 4);
        bits |= kept<W, kKeys / 16>(a.mask, sample, index, 16) << (8 * r);
      }
      own.kept[lane] = bits;
    });
  }

  /// Gradients of probabilities become those of scores, to be multiplied by `scale`.
  template <class W>
  static MEGATRON_BOTH void gradient(const Args& a, const Shared& shared, Local<W>& own, int warp_row, int key) {
    const float exponent = a.exponent(), factor = a.mask.on ? static_cast<float>(a.mask.factor) : 1;
    W::each([&](int lane) {
      if constexpr (kBias) {
        const float unscaled = 1 / a.scale;
        MEGATRON_UNROLL
        for (int r = 0; r < 2 * kTiles; ++r) MEGATRON_UNROLL
        for (int e = 0; e < kKeys / 4; ++e) {
          const int i = warp_row + 8 * r + lane / 4, j = e / 4 * 16 + lane % 4 * 4 + e % 4;
          own.s.at[r / 2][e / 2][r % 2 * 2 + e % 2][lane] += unscaled * shared.bias[j - i + kRows - 1];
        }
      }
      bool hides = false;
      MEGATRON_UNROLL
      for (int r = 0; r < 2 * kTiles; ++r) {
        const int row = warp_row + 8 * r + lane / 4, from = r % 2 * 2;
        const Interval seen = shared.seen[row];
        hides = hides || seen.from > key || seen.to < key + kKeys;
        const float logsumexp = shared.logsumexp[row], delta = shared.delta[row];
        const std::uint32_t bits = a.mask.on ? own.kept[lane] >> (8 * r) : ~0U;
        MEGATRON_UNROLL
        for (int e = 0; e < kKeys / 4; ++e) {
          const float s = own.s.at[r / 2][e / 2][from + e % 2][lane], x = a.cap > 0 ? a.template capped<W>(s) : s;
          float& of_score = own.dp.at[r / 2][e / 2][from + e % 2][lane];
          const float of_probability = (bits >> e & 1U) != 0 ? of_score * factor - delta : -delta;
          of_score = W::exp2(x * exponent - logsumexp) * of_probability;
          if (a.cap > 0) of_score *= 1 - x * x;
        }
      }
      if (hides) {
        MEGATRON_UNROLL
        for (int r = 0; r < 2 * kTiles; ++r) {
          const Interval seen = shared.seen[warp_row + 8 * r + lane / 4];
          MEGATRON_UNROLL
          for (int e = 0; e < kKeys / 4; ++e) {
            const int j = key + e / 4 * 16 + lane % 4 * 4 + e % 4;
            if (j < seen.from || j >= seen.to) own.dp.at[r / 2][e / 2][r % 2 * 2 + e % 2][lane] = 0;
          }
        }
      }
    });
  }
};

}  // namespace megatron::kernels::phases
