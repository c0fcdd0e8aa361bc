#pragma once
#include "megatron/kernels/phases/flash/tiles.h"

namespace megatron::kernels::phases {

/// The gradient of a bias of distances, in parts. A block has a head and a band of tiles of 64 queries and 64 keys that
/// lie diagonally behind one another: they have the same distances at the same places. So the gradients of scores of
/// all samples and tiles are added up where they are, in registers, and along diagonals only at the end.
template <class T, int kD>
struct FlashBiasGradient {
  static constexpr int kWarps = 4, kBlocks = kD == 64 ? 2 : 1, kPhases = 5, kRepeatFrom = 1, kRepeatTo = 3;
  static constexpr int kWarpRows = 16, kTile = kWarps * kWarpRows, kParts = 2 * kTile;
  using Args = FlashArgs;
  struct Shared {
    SharedTile<T, kTile, kD> q, dout, k, v;
    Interval seen[kTile];
    float logsumexp[kTile], delta[kTile];  ///< to the base 2
    float bias[kParts], sums[kTile][kTile + 1];
  };
  template <class W>
  struct Local {
    Products<W, 1, kTile / 8> s, dp, sums;
    Word<W> kept;  ///< bits 16 h + 4 (j / 2): of four keys
    int first_tile, tiles, rounds;
    Task task;
  };

  static MEGATRON_BOTH std::int64_t tiles(std::int64_t rows) { return (rows + kTile - 1) / kTile; }
  /// Of a band's tiles that of the keys is so many behind that of the queries: from 1 - tiles of queries on.
  static MEGATRON_BOTH std::int64_t bands(const Args& a) { return tiles(a.queries) + tiles(a.keys) - 1; }
  /// Floats of a.partial: [n, bands, kParts].
  static std::int64_t room(const Args& a) { return a.heads() * bands(a) * kParts; }

  template <int kPhase, class W>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local<W>& own) {
    if constexpr (kPhase == 0) {
      own.task = task_of(at, a.heads(), bands(a));
      find_tiles(a, own);
      own.sums.clear();
    } else if constexpr (kPhase == 1) {
      load<W>(a, shared, at.thread, place_of(a, own, at.round), own.task.n);
      W::wait();
    } else if constexpr (kPhase == 2) {
      const Place place = place_of(a, own, at.round);
      const int warp_row = at.thread * kWarpRows;
      if (a.mask.on) draw<W>(a, own, place, warp_row);
      own.s.clear();
      own.s.add(shared.q, warp_row, shared.k);
      own.dp.clear();
      own.dp.add(shared.dout, warp_row, shared.v);
      add<W>(a, shared, own, warp_row, static_cast<int>(place.key));
    } else if constexpr (kPhase == 3) {
      W::each([&](int lane) {
        MEGATRON_UNROLL
        for (int h = 0; h < 2; ++h) MEGATRON_UNROLL
        for (int e = 0; e < kTile / 4; ++e)
          shared.sums[at.thread * kWarpRows + 8 * h + lane / 4][column_of(e, lane)] =
              own.sums.at[0][e / 2][2 * h + e % 2][lane];
      });
    } else {
      W::each([&](int lane) {
        const int part = 32 * at.thread + lane;  // key - query + kTile - 1
        float sum = 0;
        for (int i = 0; i < kTile; ++i) {
          const int j = part + i - (kTile - 1);
          if (j >= 0 && j < kTile) sum += shared.sums[i][j];
        }
        a.partial[at.block * kParts + part] = sum;
      });
    }
  }

 private:
  struct Place {
    int b;
    std::int64_t query, key;  ///< the first ones of a tile
  };

  static MEGATRON_BOTH std::int64_t behind(const Args& a, int band) { return band - (tiles(a.queries) - 1); }
  /// The band's tiles of queries; none where all of its keys are hidden.
  template <class Local>
  static MEGATRON_BOTH void find_tiles(const Args& a, Local& own) {
    const std::int64_t shift = behind(a, own.task.tile), of_keys = tiles(a.keys) - shift;
    const std::int64_t from = shift < 0 ? -shift : 0, to = of_keys < tiles(a.queries) ? of_keys : tiles(a.queries);
    const bool hidden = a.causal && shift * kTile > kTile - 1 + (a.keys - a.queries) + a.ahead;
    own.first_tile = static_cast<int>(from);
    own.tiles = to > from && !hidden ? static_cast<int>(to - from) : 0;
    own.rounds = own.tiles * static_cast<int>(a.batch);
  }
  template <class Local>
  static MEGATRON_BOTH Place place_of(const Args& a, const Local& own, int round) {
    const int b = round / own.tiles;
    const std::int64_t tile = own.first_tile + (round - b * own.tiles);
    return {b, tile * kTile, (tile + behind(a, own.task.tile)) * kTile};
  }
  /// Element e of a lane's row: as key_of_row has them.
  static MEGATRON_BOTH int column_of(int e, int lane) { return e / 4 * 16 + lane % 4 * 4 + e % 4; }

  template <class W>
  static MEGATRON_BOTH void load(const Args& a, Shared& shared, int warp, const Place& place, int n) {
    const auto ratio = static_cast<int>(a.ratio);
    const int group = n / ratio, head = n % ratio, b = place.b;
    begin_copy<W, kWarps>(shared.q, warp, rows_of<const T>(a.q, b, group, head), a.q.stride_s, place.query, a.queries,
                          a.d, itself);
    begin_copy<W, kWarps>(shared.dout, warp, rows_of<const T>(a.dout, b, group, head), a.dout.stride_s, place.query,
                          a.queries, a.d, itself);
    begin_copy<W, kWarps>(shared.k, warp, rows_of<const T>(a.k, b, group, 0), a.k.stride_s, place.key, a.keys, a.d,
                          key_of_row);
    begin_copy<W, kWarps>(shared.v, warp, rows_of<const T>(a.v, b, group, 0), a.v.stride_s, place.key, a.keys, a.d,
                          key_of_row);
    begin_copy_bias<W, kWarps>(a, shared.bias, warp, n, place.query, kTile, place.key, kTile);
    W::each([&](int lane) {
      const int row = warp * kWarpRows + lane;
      if (lane >= kWarpRows) return;
      const std::int64_t i = place.query + row;
      shared.seen[row] = seen_by(a, b, i);
      shared.logsumexp[row] = i < a.queries ? a.logsumexp[a.row(b, n, i)] * kLog2E : 0;
      shared.delta[row] = i < a.queries ? a.delta[a.row(b, n, i)] : 0;
    });
  }

  template <class W>
  static MEGATRON_BOTH void draw(const Args& a, Local<W>& own, const Place& place, int warp_row) {
    const std::uint64_t sample = a.mask.sample(place.b);
    W::each([&](int lane) {
      std::uint32_t bits = 0;
      for (int h = 0; h < 2; ++h) {
        const std::uint64_t index =
            a.element(own.task.n, place.query + warp_row + 8 * h + lane / 4, place.key + lane % 4 * 4);
        bits |= kept<W, kTile / 16>(a.mask, sample, index, 16) << (16 * h);
      }
      own.kept[lane] = bits;
    });
  }

  template <class W>
  static MEGATRON_BOTH void add(const Args& a, const Shared& shared, Local<W>& own, int warp_row, int key) {
    const float exponent = a.exponent(), unscaled = 1 / a.scale;
    const float factor = a.mask.on ? static_cast<float>(a.mask.factor) : 1;
    W::each([&](int lane) {
      MEGATRON_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int row = warp_row + 8 * h + lane / 4;
        const Interval seen = shared.seen[row];
        const float logsumexp = shared.logsumexp[row], delta = shared.delta[row];
        const std::uint32_t bits = a.mask.on ? own.kept[lane] >> (16 * h) : ~0U;
        MEGATRON_UNROLL
        for (int e = 0; e < kTile / 4; ++e) {
          const int j = column_of(e, lane);
          const float s = own.s.at[0][e / 2][2 * h + e % 2][lane] + unscaled * shared.bias[j - row + kTile - 1];
          const float dp = own.dp.at[0][e / 2][2 * h + e % 2][lane];
          const float of_probability = (bits >> e & 1U) != 0 ? dp * factor - delta : -delta;
          if (key + j >= seen.from && key + j < seen.to)
            own.sums.at[0][e / 2][2 * h + e % 2][lane] += W::exp2(s * exponent - logsumexp) * of_probability;
        }
      }
    });
  }
};

/// The gradient of a head's bias at a distance: the sum of the two parts, or the one, of bands that have it. A thread
/// each.
struct FlashBiasSum : Straight {
  static constexpr int kThreads = 128, kPhases = 1;
  using Args = FlashArgs;
  using Shared = Nothing;
  using Local = Nothing;
  using Parts = FlashBiasGradient<Bf16, 64>;  // of every type and size the same ones

  static std::int64_t tasks(const Args& a) { return a.heads() * (a.queries + a.keys - 1); }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared&, Local&) {
    constexpr std::int64_t kTile = Parts::kTile;
    const std::int64_t task = task_of<FlashBiasSum>(at), distances = a.queries + a.keys - 1, n = task / distances;
    if (n >= a.heads()) return;
    const std::int64_t first = Parts::tiles(a.queries) * kTile;  // of the first band's keys to the last query's tile
    const std::int64_t place = task % distances - (a.queries - 1) + first, band = place / kTile - 1,
                       rest = place % kTile;
    const float* const parts = a.partial + n * Parts::bands(a) * Parts::kParts;
    float sum = 0;
    if (band >= 0 && band < Parts::bands(a)) sum = parts[band * Parts::kParts + rest + kTile - 1];
    if (rest > 0 && band + 1 < Parts::bands(a)) sum += parts[(band + 1) * Parts::kParts + rest - 1];
    a.dbias[task] = sum;
  }
};

}  // namespace megatron::kernels::phases
