#pragma once
#include <string>

#include "app/jobs.h"
#include "megatron/config/megatron/translate.h"

namespace megatron::app {

/// Whether the program can compute on GPUs here.
bool has_gpus();

/// What the arguments of Megatron-LM's `program` say on this machine, with this program's own options among them.
/// Throws HelpRequested, and ConfigError for what is wrong with the words.
config::MegatronTranslation pretrain_options(const std::string& program, const Args& args);

}  // namespace megatron::app
