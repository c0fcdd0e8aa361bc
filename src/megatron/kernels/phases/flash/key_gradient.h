#pragma once
#include "megatron/kernels/phases/flash/tiles.h"

namespace megatron::kernels::phases {

/// dk and dv. A block has 128 keys of a group, a warp 16 of them; rounds over the group's heads and tiles of 32
/// queries, of which the next is loaded meanwhile. Products have keys as rows. Of wide heads a lane cannot hold the
/// sums of both: a block has 64 keys, whose dk four warps have and whose dv four others, and tiles of 16 queries.
template <class T, int kD, bool kBias>
struct FlashKeyGradient {
  static constexpr int kWarps = 8, kBlocks = kD == 64 ? 2 : 1, kPhases = 3, kRepeatFrom = 1, kRepeatTo = 2;
  static constexpr bool kApart = kD > 128;
  static constexpr int kKeyWarps = kApart ? kWarps / 2 : kWarps, kWarpRows = 16, kRows = kKeyWarps * kWarpRows,
                       kQueries = kApart ? 16 : 32;
  using Args = FlashArgs;
  struct Shared {
    SharedTile<T, kRows, kD> k, v;
    SharedTile<T, kQueries, kD> q[2], dout[2];
    float logsumexp[2][kQueries], delta[2][kQueries], bias[2][kBias ? kRows + kQueries : 1];
    std::int32_t first_key[2][kQueries];
  };
  template <class W>
  struct Local {
    Products<W, 1, kD / 8> sums[kApart ? 1 : 2];  ///< dk and dv; kApart: what the warp has
    Products<W, 1, kQueries / 8> s, dp;
    std::int64_t first_query;  ///< of those that see a key of the block
    int tiles, rounds;         ///< tiles of queries of a head
    Task task;
  };

  static MEGATRON_BOTH std::int64_t tiles(const Args& a) { return (a.keys + kRows - 1) / kRows; }

  template <int kPhase, class W>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local<W>& own) {
    if constexpr (kPhase == 0) own.task = task_of(at, a.groups, tiles(a));
    const int b = own.task.b, group = own.task.n;
    const std::int64_t first = std::int64_t{own.task.tile} * kRows;
    const bool of_values = kApart && at.thread >= kKeyWarps;
    const int warp_row = (of_values ? at.thread - kKeyWarps : at.thread) * kWarpRows;
    if constexpr (kPhase == 0) {
      begin_copy<W, kWarps>(shared.k, at.thread, rows_of<const T>(a.k, b, group, 0), a.k.stride_s, first, a.keys, a.d,
                            key_of_product_row);
      begin_copy<W, kWarps>(shared.v, at.thread, rows_of<const T>(a.v, b, group, 0), a.v.stride_s, first, a.keys, a.d,
                            key_of_product_row);
      MEGATRON_UNROLL
      for (auto& sums : own.sums) sums.clear();
      find_queries<W>(a, own, b, first);
      if (own.rounds > 0) begin_round<W>(a, shared, own, at.thread, b, group, 0);
      W::wait();
    } else if constexpr (kPhase == 1) {
      if (at.round + 1 < own.rounds) begin_round<W>(a, shared, own, at.thread, b, group, at.round + 1);
      const int head = at.round / own.tiles, n = group * static_cast<int>(a.ratio) + head;
      const std::int64_t query = own.first_query + (at.round - head * own.tiles) * kQueries, key = first + warp_row,
                         length = a.key_lengths != nullptr ? a.key_lengths[b] : a.keys;
      const int buffer = at.round & 1;
      if (key < length && (!a.causal || key <= query + kQueries - 1 + shift(a))) {
        own.s.clear();
        own.s.add(shared.k, warp_row, shared.q[buffer]);
        own.dp.clear();
        if (!of_values) own.dp.add(shared.v, warp_row, shared.dout[buffer]);
        gradient<W>(a, shared, own, b, n, query, key, length, buffer);
        if constexpr (kApart) {
          if (of_values) own.dp = own.s;
          own.sums[0].add(own.dp, of_values ? shared.dout[buffer] : shared.q[buffer]);
        } else {
          own.sums[1].add(own.s, shared.dout[buffer]);
          own.sums[0].add(own.dp, shared.q[buffer]);
        }
      }
      W::wait();
    } else {
      const auto write = [&](const auto& sums, const Heads& to, float factor) {
        write_rows<W, T>(sums, rows_of<T>(to, b, group, 0), to.stride_s, first + warp_row, a.keys, a.d,
                         key_of_product_row, [&](int, int, int) { return factor; });
      };
      const float of_kept = a.mask.on ? static_cast<float>(a.mask.factor) : 1;
      if constexpr (kApart) {
        write(own.sums[0], of_values ? a.dv : a.dk, of_values ? of_kept : a.scale);
      } else {
        write(own.sums[0], a.dk, a.scale);
        write(own.sums[1], a.dv, of_kept);
      }
    }
  }

 private:
  /// Query i sees keys up to i + shift where causal.
  static MEGATRON_BOTH std::int64_t shift(const Args& a) { return a.keys - a.queries + a.ahead; }

  template <class W>
  static MEGATRON_BOTH void find_queries(const Args& a, Local<W>& own, std::int64_t b, std::int64_t first) {
    std::int64_t from = a.causal ? first - shift(a) : 0, to = a.queries;
    if (from < 0) from = 0;
    if (a.key_lengths != nullptr && first >= a.key_lengths[b]) to = 0;
    if (a.first_key != nullptr) {
      typename W::template Lanes<int> last;
      W::each([&](int lane) {
        last[lane] = 0;
        for (std::int64_t i = from + lane; i < to; i += 32)
          if (a.first_key[b * a.queries + i] < first + kRows) last[lane] = static_cast<int>(i + 1);
      });
      reduce<W, int>(last, 32, [](int x, int y) { return x > y ? x : y; });
      to = last[0];
    }
    own.first_query = from / kQueries * kQueries;
    own.tiles = to > from ? static_cast<int>((to - own.first_query + kQueries - 1) / kQueries) : 0;
    own.rounds = own.tiles * static_cast<int>(a.ratio);
  }

  template <class W>
  static MEGATRON_BOTH void begin_round(const Args& a, Shared& shared, Local<W>& own, int warp, int b, int group,
                                        int round) {
    const int head = round / own.tiles;
    const std::int64_t query = own.first_query + (round - head * own.tiles) * kQueries;
    const int buffer = round & 1;
    begin_copy<W, kWarps>(shared.q[buffer], warp, rows_of<const T>(a.q, b, group, head), a.q.stride_s, query, a.queries,
                          a.d, itself);
    begin_copy<W, kWarps>(shared.dout[buffer], warp, rows_of<const T>(a.dout, b, group, head), a.dout.stride_s, query,
                          a.queries, a.d, itself);
    if constexpr (kBias)
      begin_copy_bias<W, kWarps>(a, shared.bias[buffer], warp, group * a.ratio + head, query, kQueries,
                                 std::int64_t{own.task.tile} * kRows, kRows);
    const std::int64_t row = a.row(b, group * a.ratio + head, query);
    W::each([&](int lane) {
      const bool there = query + lane < a.queries;
      if (lane >= kQueries) return;
      if (warp == 0) W::copy_word(&shared.logsumexp[buffer][lane], a.logsumexp + row + lane, there);
      if (warp == 1) W::copy_word(&shared.delta[buffer][lane], a.delta + row + lane, there);
      if (warp == 2 && a.first_key != nullptr)
        W::copy_word(&shared.first_key[buffer][lane], a.first_key + b * a.queries + query + lane, there);
    });
  }

  /// Which of a lane's elements dropout keeps: of its two keys, bits 4 j + 2 e and the next for its column e of columns
  /// 8 j to 8 j + 7. A lane and the one that has the next two keys each draw a column for both.
  template <class W>
  static MEGATRON_BOTH void draw(const Args& a, Word<W>& bits, int b, int n, std::int64_t query, std::int64_t key) {
    const std::uint64_t sample = a.mask.sample(b);
    Word<W> drawn, of_other;
    W::each([&](int lane) {
      const int column = lane % 4 * 2 + lane / 4 % 2;
      drawn[lane] = kept<W, kQueries / 8>(a.mask, sample, a.element(n, query + column, key + lane / 8 * 4),
                                          static_cast<std::uint64_t>(8 * a.mask.features));
    });
    W::exchange(of_other, drawn, 4);
    W::each([&](int lane) {
      constexpr std::uint32_t kLow = 0x33333333U;
      const bool odd = lane / 4 % 2 != 0;
      const std::uint32_t first = odd ? of_other[lane] : drawn[lane], second = odd ? drawn[lane] : of_other[lane];
      bits[lane] = odd ? (first >> 2 & kLow) | (second & ~kLow) : (first & kLow) | (second & kLow) << 2;
    });
  }

  template <class W>
  static MEGATRON_BOTH void gradient(const Args& a, const Shared& shared, Local<W>& own, int b, int n,
                                     std::int64_t query, std::int64_t key, std::int64_t length, int buffer) {
    const float exponent = a.exponent(), factor = a.mask.on ? static_cast<float>(a.mask.factor) : 1;
    const bool hides = a.first_key != nullptr || key + kWarpRows > length || query + kQueries > a.queries ||
                       (a.causal && key + kWarpRows - 1 > query + shift(a));
    Word<W> kept_bits;
    if (a.mask.on) draw<W>(a, kept_bits, b, n, query, key);
    W::each([&](int lane) {
      if constexpr (kBias) {
        const float unscaled = 1 / a.scale;
        const int row = static_cast<int>(key % kRows) + lane / 4 * 2;
        MEGATRON_UNROLL
        for (int e = 0; e < kQueries / 4; ++e) MEGATRON_UNROLL
        for (int h = 0; h < 2; ++h) {
          const int column = e / 2 * 8 + lane % 4 * 2 + e % 2;
          own.s.at[0][e / 2][2 * h + e % 2][lane] += unscaled * shared.bias[buffer][row + h - column + kQueries - 1];
        }
      }
      const std::uint32_t bits = a.mask.on ? kept_bits[lane] : ~0U;
      MEGATRON_UNROLL
      for (int e = 0; e < kQueries / 4; ++e) {
        const int column = e / 2 * 8 + lane % 4 * 2 + e % 2;
        const float logsumexp = shared.logsumexp[buffer][column] * kLog2E, delta = shared.delta[buffer][column];
        MEGATRON_UNROLL
        for (int h = 0; h < 2; ++h) {
          float& s = own.s.at[0][e / 2][2 * h + e % 2][lane];
          float& dp = own.dp.at[0][e / 2][2 * h + e % 2][lane];
          const float x = a.cap > 0 ? a.template capped<W>(s) : s, p = W::exp2(x * exponent - logsumexp);
          const bool stays = (bits >> (2 * e + h) & 1U) != 0;
          dp = p * (stays ? dp * factor - delta : -delta);
          if (a.cap > 0) dp *= 1 - x * x;
          s = stays ? p : 0;
        }
      }
      if (hides) {
        MEGATRON_UNROLL
        for (int e = 0; e < kQueries / 4; ++e) {
          const int column = e / 2 * 8 + lane % 4 * 2 + e % 2;
          const std::int64_t i = query + column, last = a.causal ? i + shift(a) : a.keys;
          MEGATRON_UNROLL
          for (int h = 0; h < 2; ++h) {
            const std::int64_t j = key + lane / 4 * 2 + h;
            if (i >= a.queries || j >= length || j > last ||
                (a.first_key != nullptr && j < shared.first_key[buffer][column]))
              own.s.at[0][e / 2][2 * h + e % 2][lane] = own.dp.at[0][e / 2][2 * h + e % 2][lane] = 0;
          }
        }
      }
    });
  }
};

}  // namespace megatron::kernels::phases
