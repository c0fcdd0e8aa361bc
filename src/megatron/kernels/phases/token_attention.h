#pragma once
#include "megatron/kernels/phases/token_attention_parts.h"

namespace megatron::kernels::phases {

/// A part of the keys of a group, for up to kMembers of its queries. The block that has the new token's row writes it
/// into the cache; no block reads it there.
template <class T, int kMembers>
struct TokenAttention : Straight {
  using C = Compute<T>;
  static constexpr bool kOverlaps = true;
  static constexpr int kResident = kMembers == 1 ? 4 : 3;
  static constexpr int kThreads = kPartKeys, kPhases = 6, kFolded = 16, kBatch = 8;
  using Args = TokenAttentionArgs<T>;
  struct alignas(16) Shared {
    C q[kMembers][kMostHeadSize], key[kMostHeadSize], value[kMostHeadSize];
    C p[kMembers][kThreads], lane[kMembers][kFolded];
    C out[kThreads * kMembers * kChunk<T>];
  };
  using Local = Nothing;

  /// The sequence, group of heads and part of the keys that a block computes.
  struct BlockInfo {
    std::int64_t b, group, member, part;  ///< member: the first of its queries
    int members;
    std::int64_t first, length, begin;  ///< keys first … length are seen; those of the part begin at `begin`
    bool live;

    MEGATRON_BOTH bool sees(std::int64_t j) const { return j >= first && j < length; }  ///< in the cache
    MEGATRON_BOTH bool has_new() const { return length >= begin && length < begin + kPartKeys; }
  };
  static MEGATRON_BOTH std::int64_t pieces(const Args& a) { return (a.ratio + kMembers - 1) / kMembers; }
  static MEGATRON_BOTH std::int64_t blocks(const Args& a) { return a.batch * a.groups * pieces(a) * a.parts; }
  static MEGATRON_BOTH BlockInfo place(const Args& a, const At& at) {
    BlockInfo p;
    std::int64_t rest = at.block;
    p.part = rest % a.parts;
    rest /= a.parts;
    p.member = rest % pieces(a) * kMembers;
    rest /= pieces(a);
    p.group = rest % a.groups;
    p.b = rest / a.groups;
    p.members = static_cast<int>(a.ratio - p.member < kMembers ? a.ratio - p.member : kMembers);
    p.first = a.first_key(p.b);
    p.length = a.lengths[p.b];
    p.begin = p.part * kPartKeys;
    p.live = p.begin <= p.length && p.begin + kPartKeys > p.first;
    return p;
  }

  static MEGATRON_BOTH void take(const Args& a, const At& at, const BlockInfo& p, Shared& shared) {
    const std::int64_t position = p.length - a.padding[p.b];
    for (std::int64_t task = at.thread; task < p.members * a.d; task += kThreads) {
      const std::int64_t m = task / a.d, c = task % a.d;
      shared.q[m][c] = widen(a.rotated(a.head(p.b, p.group, p.member + m), c, position));
    }
    if (!p.has_new()) return;
    for (std::int64_t c = at.thread; c < a.d; c += kThreads) {
      const T key = a.rotated(a.head(p.b, p.group, a.ratio), c, position);
      const T value = a.head(p.b, p.group, a.ratio + 1)[c];
      shared.key[c] = widen(key);
      shared.value[c] = widen(value);
      if (p.member != 0) continue;
      a.keys[a.row(p.b, p.group, p.length) + c] = key;
      a.values[a.row(p.b, p.group, p.length) + c] = value;
    }
  }

  /// A thread has a key.
  static MEGATRON_BOTH void score(const Args& a, const At& at, const BlockInfo& p, Shared& shared) {
    const std::int64_t j = p.begin + at.thread, chunks = chunks_of<T>(a.d);
    const bool cached = p.sees(j), fresh = j == p.length;
    C sums[kMembers] = {};
    for (std::int64_t first = 0; cached && first < chunks; first += kBatch) {
      const T* const key = a.keys + a.row(p.b, p.group, j);
      Chunk<T> now[kBatch];
      MEGATRON_UNROLL
      for (int i = 0; i < kBatch; ++i)
        if (first + i < chunks) now[i] = load_chunk(key + (first + i) * kChunk<T>, chunk_size<T>(a.d, first + i));
      MEGATRON_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        if (first + i >= chunks) continue;
        const std::int64_t begin = (first + i) * kChunk<T>;
        MEGATRON_UNROLL
        for (int e = 0; e < kChunk<T>; ++e) {
          if (begin + e >= a.d) continue;
          const C k = number_of(now[i], e);
          MEGATRON_UNROLL
          for (int m = 0; m < kMembers; ++m) sums[m] = std::fma(shared.q[m][begin + e], k, sums[m]);
        }
      }
    }
    for (std::int64_t c = 0; fresh && c < a.d; ++c) {
      MEGATRON_UNROLL
      for (int m = 0; m < kMembers; ++m) sums[m] = std::fma(shared.q[m][c], shared.key[c], sums[m]);
    }
    MEGATRON_UNROLL
    for (int m = 0; m < kMembers; ++m) {
      C s = sums[m] * a.scale;
      if (a.soft_cap > C(0)) s = std::tanh(s / a.soft_cap) * a.soft_cap;
      shared.p[m][at.thread] = m < p.members && (cached || fresh) ? s : -std::numeric_limits<C>::infinity();
    }
  }
  static MEGATRON_BOTH void fold_max(const At& at, Shared& shared) {
    for (int task = at.thread; task < kMembers * kFolded; task += kThreads) {
      const int m = task / kFolded, lane = task % kFolded;
      C max = shared.p[m][lane];
      for (int i = lane + kFolded; i < kThreads; i += kFolded) max = max < shared.p[m][i] ? shared.p[m][i] : max;
      shared.lane[m][lane] = max;
    }
  }
  static MEGATRON_BOTH std::int64_t statistic(const Args& a, const BlockInfo& p, int m) {
    return ((p.b * a.groups + p.group) * a.ratio + p.member + m) * a.parts + p.part;
  }
  static MEGATRON_BOTH void exponents(const Args& a, const At& at, const BlockInfo& p, Shared& shared) {
    for (int m = 0; m < p.members; ++m) {
      C max = shared.lane[m][0];
      for (int i = 1; i < kFolded; ++i) max = max < shared.lane[m][i] ? shared.lane[m][i] : max;
      const C s = shared.p[m][at.thread];
      shared.p[m][at.thread] = s == -std::numeric_limits<C>::infinity() ? C(0) : std::exp(s - max);
      if (at.thread == 0) a.max[statistic(a, p, m)] = max;
    }
  }
  static MEGATRON_BOTH void fold_sum(const At& at, const BlockInfo& p, Shared& shared) {
    for (int task = at.thread; task < p.members * kFolded; task += kThreads) {
      const int m = task / kFolded, lane = task % kFolded;
      C sum = shared.p[m][lane];
      for (int i = lane + kFolded; i < kThreads; i += kFolded) sum += shared.p[m][i];
      shared.lane[m][lane] = sum;
    }
  }

  /// Threads side by side have chunks of one value, sets of them every so many values.
  static MEGATRON_BOTH int columns(const Args& a) { return static_cast<int>(chunks_of<T>(a.d)); }
  static MEGATRON_BOTH int sets(const Args& a) { return kThreads / columns(a); }
  static MEGATRON_BOTH void weigh(const Args& a, const At& at, const BlockInfo& p, Shared& shared) {
    const int column = at.thread % columns(a), set = at.thread / columns(a), step = sets(a);
    if (set >= step) return;
    const int count = chunk_size<T>(a.d, column);
    C sums[kMembers][kChunk<T>] = {};
    for (int first = set; first < kThreads; first += kBatch * step) {
      Chunk<T> now[kBatch];
      MEGATRON_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const int j = first + i * step;
        now[i] = {};
        if (j < kThreads && p.sees(p.begin + j))
          now[i] = load_chunk(a.values + a.row(p.b, p.group, p.begin + j) + column * kChunk<T>, count);
      }
      MEGATRON_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const int j = first + i * step;
        if (j >= kThreads || !p.sees(p.begin + j)) continue;
        add(shared, p, j, sums, [&](int e) { return number_of(now[i], e); });
      }
    }
    const std::int64_t fresh = p.length - p.begin;
    if (p.has_new() && fresh % step == set)
      add(shared, p, static_cast<int>(fresh), sums,
          [&](int e) { return e < count ? shared.value[column * kChunk<T> + e] : C(0); });
    MEGATRON_UNROLL
    for (int m = 0; m < kMembers; ++m) {
      MEGATRON_UNROLL
      for (int e = 0; e < kChunk<T>; ++e)
        if (m < p.members) shared.out[((set * kMembers + m) * columns(a) + column) * kChunk<T> + e] = sums[m][e];
    }
  }
  template <class Value>
  static MEGATRON_BOTH void add(const Shared& shared, const BlockInfo& p, int j, C (&sums)[kMembers][kChunk<T>],
                                const Value& value) {
    MEGATRON_UNROLL
    for (int m = 0; m < kMembers; ++m) {
      const C weight = m < p.members ? shared.p[m][j] : C(0);
      MEGATRON_UNROLL
      for (int e = 0; e < kChunk<T>; ++e) sums[m][e] = std::fma(weight, value(e), sums[m][e]);
    }
  }
  static MEGATRON_BOTH void end(const Args& a, const At& at, const BlockInfo& p, const Shared& shared) {
    const int width = columns(a) * kChunk<T>;
    for (std::int64_t task = at.thread; task < p.members * a.d; task += kThreads) {
      const int m = static_cast<int>(task / a.d), c = static_cast<int>(task % a.d);
      C sum = 0;
      for (int set = 0; set < sets(a); ++set) sum += shared.out[(set * kMembers + m) * width + c];
      a.out[statistic(a, p, m) * a.d + c] = sum;
    }
    for (int m = at.thread; m < p.members; m += kThreads) {
      C sum = shared.lane[m][0];
      for (int i = 1; i < kFolded; ++i) sum += shared.lane[m][i];
      a.sum[statistic(a, p, m)] = sum;
    }
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local&) {
    if constexpr (kPhase == 0) {
      let_next_kernel_begin();
      wait_for_kernels_before();
    }
    const BlockInfo p = place(a, at);
    if (!p.live) return;
    if constexpr (kPhase == 0) {
      take(a, at, p, shared);
    } else if constexpr (kPhase == 1) {
      score(a, at, p, shared);
    } else if constexpr (kPhase == 2) {
      fold_max(at, shared);
    } else if constexpr (kPhase == 3) {
      exponents(a, at, p, shared);
    } else if constexpr (kPhase == 4) {
      fold_sum(at, p, shared);
      weigh(a, at, p, shared);
    } else {
      end(a, at, p, shared);
    }
  }
};

}  // namespace megatron::kernels::phases
