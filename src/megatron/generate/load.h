#pragma once
#include <filesystem>

#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/parameters.h"

namespace megatron::generate {

/// Fills the parameters, split in any way, with the weights in `folder`: a checkpoint, a Hugging Face folder or
/// Megatron-LM's (interchange/weights.h); nothing of the optimizer's is read. Rows that pad the vocabulary stay as they
/// are: they take no part. Throws ConfigError for weights that are damaged or another model's; `strict`: also where
/// some are missing or left over.
void load_weights(const std::filesystem::path& folder, const parallel::ParameterStore& parameters,
                  const plan::ModelShape& shape, bool strict = true);

}  // namespace megatron::generate
