#pragma once
#include <vector>

#include "megatron/plan/ranks/rank_roles.h"

namespace megatron::plan {

/// By rank: the one that has its place in the model and reads the samples of a batch `places` further on;
/// RankRoles::samples() is a ring.
std::vector<int> ranks_further(const RankRoles& roles, int places);

/// The least number of places after which ranks_further() computes the same bits from the same samples: whoever a rank
/// exchanges tokens of experts with, the rank further on does so with the ranks further on, in the same order. 1
/// without expert parallelism; it divides the shares of a batch. 0: there is no such number, or one share.
int copy_distance(const RankRoles& roles);

}  // namespace megatron::plan
