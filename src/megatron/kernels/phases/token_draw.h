#pragma once
#include <limits>

#include "megatron/base/philox.h"
#include "megatron/kernels/phases/likelihood.h"
#include "megatron/kernels/phases/token.h"

namespace megatron::kernels::phases {

/// Each sequence is fed a token that is drawn from all of them, and has a row more: the one that generate::sample()
/// draws. A block a sequence; thread t has the ids t, t + 1024, … where the largest logit is looked for, and chunk t
/// (likelihood.h) where weights are added up.
template <class T>
struct TokenDraw : Straight {
  using C = Compute<T>;
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = kLikelihoodLanes, kPhases = 7, kGroups = kThreads / kChunksOfGroup;
  static constexpr int kMostOfChunk = 1024;
  struct Args {
    const T* logits = nullptr;  ///< [batch, v]
    std::int64_t v = 0;         ///< at most kMostOfChunk kLikelihoodLanes
    double temperature = 1, min_p = 0;
    const std::int64_t *keys = nullptr, *copies = nullptr, *padding = nullptr;  ///< [batch]
    std::int64_t *tokens = nullptr, *lengths = nullptr, *chosen = nullptr;  ///< [batch]; chosen: -1 where not finite
  };
  struct Shared {
    C largest[kThreads], group_largest[kGroups];
    bool finite[kThreads], group_finite[kGroups];
    double sum[kThreads], group_sum[kGroups], weight[kMostOfChunk];
    double before, target;  ///< what the chunks before weigh, and the number that draws
    int chunk;
  };
  struct Local {
    double largest;
  };

  static MEGATRON_BOTH double weight_of(const Args& a, const At& at, std::int64_t id, double largest) {
    return weight(static_cast<double>(widen(a.logits[at.block * a.v + id])), largest, a.temperature, a.min_p);
  }
  static MEGATRON_BOTH int size_of_chunk(const Args& a, int chunk) {
    const std::int64_t most = chunk_size_of(a.v), left = a.v - chunk * most;
    return static_cast<int>(left < 0 ? 0 : left < most ? left : most);
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local& local) {
    const int t = at.thread;
    if constexpr (kPhase == 0) {
      wait_for_kernels_before();
      C largest = -std::numeric_limits<C>::infinity();
      bool finite = true;
      for (std::int64_t id = t; id < a.v; id += kThreads) {
        const C value = widen(a.logits[at.block * a.v + id]);
        if (!(std::abs(value) <= std::numeric_limits<C>::max())) finite = false;
        if (value > largest) largest = value;
      }
      shared.largest[t] = largest;
      shared.finite[t] = finite;
    } else if constexpr (kPhase == 1) {
      if (t >= kGroups) return;
      C largest = shared.largest[t];
      bool finite = shared.finite[t];
      for (int i = t + kGroups; i < kThreads; i += kGroups) {
        if (shared.largest[i] > largest) largest = shared.largest[i];
        finite = finite && shared.finite[i];
      }
      shared.group_largest[t] = largest;
      shared.group_finite[t] = finite;
    } else if constexpr (kPhase == 2) {
      C largest = shared.group_largest[0];
      for (const C each : shared.group_largest)
        if (each > largest) largest = each;
      local.largest = static_cast<double>(largest);
      double sum = 0;
      const std::int64_t first = t * chunk_size_of(a.v);
      const int count = size_of_chunk(a, t);
      MEGATRON_UNROLL_BY(1)
      for (int i = 0; i < count; ++i) sum += weight_of(a, at, first + i, local.largest);
      shared.sum[t] = sum;
    } else if constexpr (kPhase == 3) {
      if (t >= kGroups) return;
      double sum = 0;
      MEGATRON_UNROLL_BY(4)
      for (int i = 0; i < kChunksOfGroup; ++i) sum += shared.sum[t * kChunksOfGroup + i];
      shared.group_sum[t] = sum;
    } else if constexpr (kPhase == 4) {
      if (t != 0) return;
      double all = 0, before = 0;
      MEGATRON_UNROLL_BY(4)
      for (const double each : shared.group_sum) all += each;
      const std::int64_t position = a.lengths[at.block] + 1 - a.padding[at.block];
      const double target =
          all * uniform_of(philox(static_cast<std::uint64_t>(a.keys[at.block]), static_cast<std::uint64_t>(position),
                                  static_cast<std::uint64_t>(a.copies[at.block])));
      const int group = part_of(before, target, kGroups, [&](int g) { return shared.group_sum[g]; });
      shared.chunk = group * kChunksOfGroup + part_of(before, target, kChunksOfGroup,
                                                      [&](int i) { return shared.sum[group * kChunksOfGroup + i]; });
      shared.before = before;
      shared.target = target;
    } else if constexpr (kPhase == 5) {
      if (t < size_of_chunk(a, shared.chunk))
        shared.weight[t] = weight_of(a, at, shared.chunk * chunk_size_of(a.v) + t, local.largest);
    } else {
      if (t != 0) return;
      bool finite = true;
      for (const bool each : shared.group_finite) finite = finite && each;
      double before = shared.before;
      const std::int64_t token =
          shared.chunk * chunk_size_of(a.v) +
          part_of(before, shared.target, size_of_chunk(a, shared.chunk), [&](int i) { return shared.weight[i]; });
      a.tokens[at.block] = finite ? token : 0;
      a.chosen[at.block] = finite ? token : -1;
      a.lengths[at.block] += 1;
    }
  }
};

}  // namespace megatron::kernels::phases
