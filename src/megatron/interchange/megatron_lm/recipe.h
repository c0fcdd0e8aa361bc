#pragma once
#include <string>
#include <vector>

#include "megatron/config/megatron/saved_arguments.h"
#include "megatron/interchange/megatron_lm/pickle.h"

namespace megatron::interchange {

/// The attributes of `args`, a namespace in `values`, that are truth values, numbers, texts, data types of torch or
/// lists of these. Throws ConfigError, which names `file`, where they are too long together.
std::vector<config::SavedArgument> saved_arguments(const Pickle& values, const PickleNode& args,
                                                   const std::string& file);

/// The recipe of those arguments, of the network `model`: without layout and paths but those of the data. `scheduler`,
/// which may be null, is the schedule's saved state. Throws ConfigError that names the argument for what a run here
/// cannot have.
config::RunConfig recipe_of_arguments(const Pickle& values, const PickleNode& args, const PickleNode* scheduler,
                                      const config::ModelConfig& model, const std::string& file);

}  // namespace megatron::interchange
