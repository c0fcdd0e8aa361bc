#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/interchange/megatron_lm/torch_file.h"
#include "megatron/interchange/training_state.h"
#include "megatron/plan/parameters/parameters.h"

// What the file with Megatron-LM's arguments says of the run that saved it, in both formats.
namespace megatron::interchange {

/// The count, from 0 on, under `name`: a number or a tensor of one. Nothing where it is none, or `dict` is null.
std::optional<std::int64_t> count_of(const TorchFile& file, const PickleNode* dict, const char* name);

/// Whether the run's optimizer keeps state of this kind of a parameter, which is a layer's matrix or is not.
bool keeps_state(const config::OptimizerConfig& optimizer, const std::string& kind, bool is_layer_matrix);

/// How many steps the optimizer has done, by its state, which may be null: "common_step" or "step" of a group or of a
/// parameter.
std::optional<std::int64_t> optimizer_steps(const TorchFile& file, const PickleNode* optimizer);

/// fp16's dynamic loss scale, in our names: Megatron-Core's trackers count down and up as ours do. Empty where `scaler`
/// is null or has none.
checkpoint::Metadata loss_scale_of(const TorchFile& file, const PickleNode* scaler);

/// The recipe of `args`, of the network `model`, and the counters; not the optimizer's steps, kinds and tensors. Throws
/// ConfigError as recipe_of_arguments() does.
TrainingState counters_of(const TorchFile& file, const PickleNode& args, const config::ModelConfig& model,
                          std::int64_t iteration);

}  // namespace megatron::interchange
