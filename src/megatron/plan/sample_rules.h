#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "megatron/config/run_config.h"
#include "megatron/plan/rule_list.h"
#include "megatron/plan/rules.h"

// The rules over the batches of a run, and the learning rate and weight decay that count their samples.
namespace megatron::plan {

/// The batches of the run and what depends on their number.
struct Samples {
  std::optional<BatchSchedule> batches;
  LearningRateSchedule rate;
  std::optional<LearningRateSchedule> words_rate;
  std::optional<WeightDecaySchedule> weight_decay;  ///< nothing: it is constant
  std::int64_t total = 0;
};

/// Sizes that schedule.step_batch_size names are the run's, its last the full batch; of a resumed run the micro batch
/// may follow.
std::vector<BatchStep> resolve_batch_steps(config::RunConfig& config, int dp, const Facts& facts, Rules& rules);

/// A resumed run keeps its global batch in any layout, as its learning rate and samples do; its micro batch may follow.
void keep_batch(config::RunConfig& config, int dp, std::int64_t batch, Rules& rules);

/// Fills in the global batch and derives what follows from it, as far as the values are in range.
Samples resolve_samples(config::RunConfig& config, int dp, const std::vector<BatchStep>& steps, const Facts& facts,
                        Rules& rules);

}  // namespace megatron::plan
