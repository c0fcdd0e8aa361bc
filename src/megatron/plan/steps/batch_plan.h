#pragma once
#include <cstdint>
#include <vector>

namespace megatron::plan {

/// Which training samples a data-parallel rank computes in one step. Sample numbers count from the start of the run
/// (they are the `sample id` of dropout too), so the global batch is the same set in the same order in every layout.
struct BatchPlan {
  /// microbatches[m] = sample numbers of microbatch m on this rank: consumed + m*(mbs*dp) + dp_rank*mbs + k.
  std::vector<std::vector<std::int64_t>> microbatches;
};

/// Throws ConfigError unless global_batch is a multiple of micro_batch * dp.
BatchPlan batch_plan(std::int64_t consumed_samples, std::int64_t global_batch, std::int64_t micro_batch, int dp,
                     int dp_rank);

}  // namespace megatron::plan
