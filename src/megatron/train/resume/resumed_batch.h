#pragma once
#include <cstdint>

#include "megatron/config/run_config.h"

namespace megatron::train {

/// plan::Facts::resumed_batch and resumed_samples.
struct ResumedBatch {
  std::int64_t size = 0, samples = 0;
};

/// train.global_batch_size of the run that `config` resumes, and its samples so far. 0 where it resumes none, or
/// where no checkpoint of it can be read, which check_inputs() reports.
ResumedBatch resumed_batch(const config::RunConfig& config);

}  // namespace megatron::train
