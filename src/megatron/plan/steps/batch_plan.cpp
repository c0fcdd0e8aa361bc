#include "megatron/plan/steps/batch_plan.h"

#include "megatron/base/error.h"

namespace megatron::plan {

BatchPlan batch_plan(std::int64_t consumed_samples, std::int64_t global_batch, std::int64_t micro_batch, int dp,
                     int dp_rank) {
  const std::int64_t per_microbatch = micro_batch * dp;
  if (micro_batch < 1 || dp < 1 || global_batch < 1 || global_batch % per_microbatch != 0)
    throw ConfigError(rule_got_fix("train.global_batch_size must be a multiple of train.micro_batch_size x dp.",
                                   concat("global batch ", global_batch, ", micro batch ", micro_batch, ", dp ", dp),
                                   concat("--global-batch-size ", per_microbatch)));
  BatchPlan plan;
  plan.microbatches.resize(static_cast<std::size_t>(global_batch / per_microbatch));
  std::int64_t next = consumed_samples + dp_rank * micro_batch;
  for (std::vector<std::int64_t>& microbatch : plan.microbatches) {
    for (std::int64_t k = 0; k < micro_batch; ++k) microbatch.push_back(next + k);
    next += per_microbatch;
  }
  return plan;
}

}  // namespace megatron::plan
