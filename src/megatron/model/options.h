#pragma once
#include "megatron/config/run_config.h"
#include "megatron/model/gpt.h"
#include "megatron/plan/parameters.h"

namespace megatron::model {

/// The model that a resolved configuration describes; `shape` as plan::gpt_shape() gives it.
GptOptions gpt_options(const config::RunConfig& config, const plan::GptShape& shape);

}  // namespace megatron::model
