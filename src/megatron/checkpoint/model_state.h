#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/config/run_config.h"
#include "megatron/plan/parameters.h"

// What training saves and generation reads: the two agree on it here.
namespace megatron::checkpoint {

/// `data`, shaped as this rank's slice of the parameter `spec` (its weights or a moment of the optimizer), named and
/// placed as in the whole model: a view for each of the spec's pieces. The rows that pad the vocabulary are left out:
/// they take no part in the model, and their number depends on the layout.
std::vector<ShardedTensor> model_tensor(const std::string& name, const plan::ParameterSpec& spec,
                                        const plan::GptShape& shape, const at::Tensor& data);

/// The configuration that the run of the checkpoint `folder` names (as find_checkpoint()) was saved with. Throws
/// ConfigError where it holds none.
config::RunConfig saved_recipe(const std::filesystem::path& folder);

}  // namespace megatron::checkpoint
