#pragma once
#include <filesystem>

#include "megatron/config/run_config.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters.h"

namespace megatron::generate {

/// The recipe that the run in `folder` was trained with, as its checkpoint keeps it. `folder`: a run's folder, its
/// checkpoints' or one checkpoint. Throws ConfigError where there is none.
config::RunConfig trained_recipe(const std::filesystem::path& folder);

/// Fills the parameters, split in any way, with the weights of the checkpoint in `folder`; nothing of the optimizer's
/// is read. Rows that pad the vocabulary stay as they are: they take no part. Throws as checkpoint::load does.
void load_weights(const std::filesystem::path& folder, const parallel::ParameterStore& parameters,
                  const plan::GptShape& shape);

}  // namespace megatron::generate
