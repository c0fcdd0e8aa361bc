#pragma once
#include <cstdint>
#include <string>

#include "megatron/interchange/training_state.h"

namespace megatron::interchange {

/// The pickle in common.pt: what Megatron-LM's training keeps beside the tensors. `training`: null for weights alone,
/// whose network is `model`, with so many rows of the vocabulary, and whose dtype in torch is `dtype`.
std::string common_pickle(const config::ModelConfig& model, std::int64_t vocabulary_rows, const std::string& dtype,
                          const TrainingState* training);

}  // namespace megatron::interchange
