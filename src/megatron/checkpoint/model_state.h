#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/config/run_config.h"
#include "megatron/plan/parameters/parameters.h"

// What training saves and generation reads: the two agree on it here.
namespace megatron::checkpoint {

/// The shape of a parameter without the rows that pad the vocabulary: they take no part in the model, and their number
/// depends on the layout.
std::vector<std::int64_t> true_shape(const plan::ParameterSpec& spec, const plan::ModelShape& shape);

/// `data`, shaped as this rank's slice of the parameter `spec` and contiguous (its weights or a moment of the
/// optimizer), named and placed as in the whole model: views, one for each of the spec's pieces, without the rows that
/// pad the vocabulary.
std::vector<ShardedTensor> model_tensor(const std::string& name, const plan::ParameterSpec& spec,
                                        const plan::ModelShape& shape, const at::Tensor& data);

/// model_tensor() of a part of it: `flat` [n] is elements begin … begin + n of the slice in row-major order, as a
/// distributed optimizer has them. Ranges do not follow rows: of a matrix there may be three views.
std::vector<ShardedTensor> model_range(const std::string& name, const plan::ParameterSpec& spec,
                                       const plan::ModelShape& shape, const at::Tensor& flat, std::int64_t begin);

/// The configuration that the run of the checkpoint `folder` names (as find_checkpoint()) was saved with. Throws
/// ConfigError where it holds none.
config::RunConfig saved_recipe(const std::filesystem::path& folder);

}  // namespace megatron::checkpoint
