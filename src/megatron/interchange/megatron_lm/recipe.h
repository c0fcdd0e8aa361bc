#pragma once
#include <string>

#include "megatron/config/run_config.h"
#include "megatron/interchange/megatron_lm/pickle.h"

namespace megatron::interchange {

/// The recipe of the run that saved these arguments of Megatron-LM, of the model `model`: what a resumed run computes
/// by, not how ranks share it or where files lie. Arguments that this program does not know keep our defaults.
/// `scheduler`: the state of its OptimizerParamScheduler, which counts in samples; null where it was not saved. Throws
/// ConfigError naming `file` and the argument for one that is of another kind than it should be.
config::RunConfig recipe_of_arguments(const Pickle& values, const PickleNode& args, const PickleNode* scheduler,
                                      const config::ModelConfig& model, const std::string& file);

}  // namespace megatron::interchange
