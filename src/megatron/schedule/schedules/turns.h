#pragma once
#include <vector>

#include "megatron/schedule/table.h"

namespace megatron::schedule {

/// The sizes of the groups of microbatches that pass through a chunk before the next chunk takes them. What does not
/// fill a group of its own that keeps all ranks busy is spread over the groups: with fewer microbatches than ranks in
/// a group, ranks would wait for one another in a ring. Throws ConfigError where shape.microbatch_group is less than
/// the ranks.
std::vector<int> group_sizes(const Shape& shape);

/// The order in which a rank takes chunks and microbatches.
struct Turn {
  int chunk = 0, microbatch = 0;
};

/// @param sizes of groups, see group_sizes()
std::vector<Turn> turns_of(const std::vector<int>& sizes, int num_chunks);

}  // namespace megatron::schedule
