#pragma once
#include <filesystem>

#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters.h"

namespace megatron::generate {

/// Fills the parameters, split in any way, with the weights of the checkpoint in `folder`; nothing of the optimizer's
/// is read. Rows that pad the vocabulary stay as they are: they take no part. Throws as checkpoint::load does.
void load_weights(const std::filesystem::path& folder, const parallel::ParameterStore& parameters,
                  const plan::GptShape& shape);

}  // namespace megatron::generate
