#pragma once
#include <cstdint>
#include <vector>

#include "megatron/corpus/dedup/band_index.h"
#include "megatron/corpus/dedup/shingle_sets.h"

namespace megatron::corpus {

inline constexpr std::uint32_t kNoCandidate = 0xFFFFFFFF;

struct Clusters {
  std::vector<std::uint32_t> first;  ///< of each candidate: the least candidate of its cluster
  std::int64_t crowded_buckets = 0;
};

/// Unites candidates that share a bucket of `index` and are similar. `candidate_of[document]` numbers the candidates in
/// the order of the documents; `sets` are theirs. The last band of the index holds keys of whole sets: equal sets have
/// equal ones. See deduplicate().
Clusters cluster(const BandIndex& index, const std::vector<std::uint32_t>& candidate_of, const ShingleSets& sets,
                 double threshold, int workers);

}  // namespace megatron::corpus
