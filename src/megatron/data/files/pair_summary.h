#pragma once
#include <cstdint>
#include <vector>

#include "megatron/data/files/indexed_dataset.h"

namespace megatron::data {

/// What a .bin/.idx pair holds.
struct PairSummary {
  std::int64_t empty_documents = 0, tokens = 0;  ///< documents without a token, of whatever sequences
  std::int64_t shortest_sequence = 0, longest_sequence = 0;
  /// Documents by their tokens: [0] those without, [b] those with 2^(b-1) to 2^b - 1.
  std::vector<std::int64_t> documents_by_length;
  /// The ids that occur lie in [least_id, greatest_id]; 0 and -1 where there is no token, or tokens are no integers.
  std::int64_t least_id = 0, greatest_id = -1;
};

/// Checks every entry of the index and reads every token, in time that the sizes of the files bound. Throws ConfigError
/// for damage, and where sequences overlap, which no program writes.
PairSummary summarize(const IndexedDataset& pair);

}  // namespace megatron::data
