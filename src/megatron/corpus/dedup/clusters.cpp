#include "megatron/corpus/dedup/clusters.h"

#include <algorithm>
#include <atomic>
#include <span>

#include "megatron/base/machine/parallel.h"
#include "megatron/corpus/dedup/dedup.h"
#include "megatron/corpus/dedup/disjoint_sets.h"

namespace megatron::corpus {
namespace {

/// One thread's buffers for sets that lie on disk.
struct Buffers {
  std::vector<std::uint64_t> a, b;
};

/// Calls `pair(a, b)` for the pairs of a bucket that are to be compared; true where some are not.
template <class OnPair>
bool for_each_pair(std::span<const std::uint32_t> bucket, OnPair&& pair) {
  const bool crowded = bucket.size() > 2 * kNeighbours;
  for (std::size_t i = 1; i < bucket.size(); ++i) {
    const std::size_t first_end = crowded ? std::min(i, kNeighbours) : i;
    for (std::size_t j = 0; j < first_end; ++j) pair(bucket[j], bucket[i]);
    for (std::size_t j = crowded ? std::max(first_end, i - std::min(i, kNeighbours)) : i; j < i; ++j)
      pair(bucket[j], bucket[i]);
  }
  return crowded;
}

/// Unites candidates whose sets are equal. Those of one bucket that differ met by chance: few, so each is compared
/// with the first of each kind.
void unite_equal(const BandIndex& index, const std::vector<std::uint32_t>& candidate_of, const ShingleSets& sets,
                 DisjointSets& clusters) {
  Buffers buffers;
  std::vector<std::uint32_t> kinds;
  index.for_each_bucket(index.bands() - 1, [&](std::span<const std::uint32_t> documents) {
    kinds.clear();
    for (const std::uint32_t document : documents) {
      const std::uint32_t candidate = candidate_of[document];
      const auto set = sets.get(candidate, buffers.a);
      const auto same = std::find_if(kinds.begin(), kinds.end(), [&](std::uint32_t kind) {
        return std::ranges::equal(sets.get(kind, buffers.b), set);
      });
      if (same != kinds.end())
        clusters.unite(*same, candidate);
      else if (kinds.size() < kNeighbours)
        kinds.push_back(candidate);
    }
  });
}

}  // namespace

Clusters cluster(const BandIndex& index, const std::vector<std::uint32_t>& candidate_of, const ShingleSets& sets,
                 double threshold, int workers) {
  DisjointSets clusters(sets.size());
  unite_equal(index, candidate_of, sets, clusters);
  // The first of those that are equal stands for all of them: a page that was copied a million times is compared once.
  std::vector<bool> stands(sets.size());
  for (std::uint32_t i = 0; i < sets.size(); ++i) stands[i] = clusters.find(i) == i;

  std::vector<Buffers> buffers_of(static_cast<std::size_t>(workers));
  std::atomic<std::int64_t> crowded = 0;
  for_each_on_threads(index.bands() - 1, workers, [&](std::size_t band, std::size_t worker) {
    Buffers& buffers = buffers_of[worker];
    std::vector<std::uint32_t> bucket;
    index.for_each_bucket(band, [&](std::span<const std::uint32_t> documents) {
      bucket.clear();
      for (const std::uint32_t document : documents)
        if (stands[candidate_of[document]]) bucket.push_back(candidate_of[document]);
      const bool is_crowded = for_each_pair(bucket, [&](std::uint32_t a, std::uint32_t b) {
        // Whether a pair is skipped depends on the threads, what is connected in the end does not.
        if (clusters.find(a) == clusters.find(b)) return;
        if (similar(sets.get(a, buffers.a), sets.get(b, buffers.b), threshold)) clusters.unite(a, b);
      });
      crowded += is_crowded ? 1 : 0;
    });
  });
  Clusters result{.first = std::vector<std::uint32_t>(sets.size()), .crowded_buckets = crowded};
  for (std::uint32_t i = 0; i < sets.size(); ++i) result.first[i] = clusters.find(i);
  return result;
}

}  // namespace megatron::corpus
