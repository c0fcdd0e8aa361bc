#pragma once
#include <limits>

#include "megatron/kernels/phases/likelihood.h"
#include "megatron/kernels/phases/token.h"
#include "megatron/kernels/token/shortlist.h"

// The likeliest tokens of each sequence, for the host to draw from.
namespace megatron::kernels::phases {

/// A block a sequence; thread t has the ids t, t + 1024, ….
///
/// Of each 32 threads' largest logits the (count / 32)-th, rounded up, is found, and of these 32 the smallest: there
/// are at least `count` that are not below it, and seldom three times as many. Those are ranked by counting who is
/// before whom. Where they are more than threads, as 32 threads have small logits alone, it is said.
template <class T>
struct TokenShortlist : Straight {
  using C = Compute<T>;
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = kLikelihoodLanes, kPhases = 6, kGroups = 32, kGroup = kThreads / kGroups;
  static_assert(kMostShortlisted <= kThreads / 4);
  struct Args {
    const T* logits = nullptr;  ///< [batch, v]
    double* list = nullptr;     ///< [batch, 2 + 2 count]: how many there are, or -1; sum; logits; ids
    std::int64_t v = 0;
    int count = 0;           ///< 1 to kMostShortlisted
    double temperature = 0;  ///< of the sum; 0: no sum
  };
  struct Entry {
    C value;
    std::int32_t token;

    /// Likelier, or as likely with a lower id: an order of all entries.
    MEGATRON_BOTH bool before(const Entry& other) const {
      return value > other.value || (value == other.value && token < other.token);
    }
  };
  struct Shared {
    Entry largest[kThreads], found[kThreads];
    double sum[kThreads], group_sum[kGroups];
    std::int32_t count[kThreads], group_count[kGroups];
    Entry bound[kGroups], first[kGroups];
    bool finite[kThreads], group_finite[kGroups];
  };
  struct Local {
    Entry bound;
  };

  static MEGATRON_BOTH Entry entry(const Args& a, const At& at, std::int64_t id) {
    return {widen(a.logits[at.block * a.v + id]), static_cast<std::int32_t>(id)};
  }

  template <int kPhase>
  static MEGATRON_BOTH void run(const Args& a, const At& at, Shared& shared, Local& local) {
    const int t = at.thread, group = t / kGroup;
    double* const list = a.list + at.block * (2 + 2 * a.count);
    if constexpr (kPhase == 0) {
      wait_for_kernels_before();
      Entry largest = {-std::numeric_limits<C>::infinity(), static_cast<std::int32_t>(a.v) + t};
      bool finite = true;
      for (std::int64_t id = t; id < a.v; id += kThreads) {
        const Entry e = entry(a, at, id);
        if (!(std::abs(e.value) <= std::numeric_limits<C>::max())) finite = false;
        if (e.value > largest.value) largest = e;
      }
      shared.largest[t] = largest;
      shared.finite[t] = finite;
    } else if constexpr (kPhase == 1) {
      const Entry mine = shared.largest[t];
      bool finite = true;
      int rank = 0;
      for (int i = group * kGroup; i < (group + 1) * kGroup; ++i) {
        rank += shared.largest[i].before(mine) ? 1 : 0;
        finite = finite && shared.finite[i];
      }
      if (rank == 0) {
        shared.first[group] = mine;
        shared.group_finite[group] = finite;
      }
      if (rank == (a.count - 1) / kGroups) shared.bound[group] = mine;
    } else if constexpr (kPhase == 2) {
      Entry bound = shared.bound[0], first = shared.first[0];
      for (int i = 1; i < kGroups; ++i) {
        if (bound.before(shared.bound[i])) bound = shared.bound[i];
        if (shared.first[i].before(first)) first = shared.first[i];
      }
      local.bound = bound;
      int count = 0;
      double sum = 0;
      for (std::int64_t id = t; id < a.v; id += kThreads) {
        const Entry e = entry(a, at, id);
        count += bound.before(e) ? 0 : 1;
        if (a.temperature > 0) sum += likelihood((static_cast<double>(e.value) - first.value) / a.temperature);
      }
      shared.count[t] = count;
      shared.sum[t] = sum;
    } else if constexpr (kPhase == 3) {
      if (t >= kGroups) return;
      int count = 0;
      double sum = 0;
      for (int i = 0; i < kGroup; ++i) {
        count += shared.count[t * kGroup + i];
        sum += shared.sum[t + i * kGroups];
      }
      shared.group_count[t] = count;
      shared.group_sum[t] = sum;
    } else if constexpr (kPhase == 4) {
      if (t == 0) {
        double sum = 0;
        for (const double each : shared.group_sum) sum += each;
        list[1] = sum;
      }
      if (total(shared) > kThreads) return;
      int place = 0;
      for (int g = 0; g < group; ++g) place += shared.group_count[g];
      for (int i = group * kGroup; i < t; ++i) place += shared.count[i];
      for (std::int64_t id = t; id < a.v; id += kThreads) {
        const Entry e = entry(a, at, id);
        if (!local.bound.before(e)) shared.found[place++] = e;
      }
    } else {
      const int found = total(shared);
      bool told = found <= kThreads;
      for (const bool finite : shared.group_finite) told = told && finite;
      if (t == 0) list[0] = !told ? -1 : found < a.count ? found : a.count;
      if (!told || t >= found) return;
      const Entry mine = shared.found[t];
      int rank = 0;
      for (int i = 0; i < found; ++i) rank += shared.found[i].before(mine) ? 1 : 0;
      if (rank >= a.count) return;
      list[2 + rank] = static_cast<double>(mine.value);
      list[2 + a.count + rank] = mine.token;
    }
  }

 private:
  static MEGATRON_BOTH int total(const Shared& shared) {
    int sum = 0;
    for (const int count : shared.group_count) sum += count;
    return sum;
  }
};

}  // namespace megatron::kernels::phases
