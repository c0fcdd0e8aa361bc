#pragma once
#include "megatron/config/run_config.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/plan/parameters/parameters.h"

namespace megatron::model {

/// The model that a resolved configuration describes; `shape` as plan::model_shape() gives it.
TransformerOptions transformer_options(const config::RunConfig& config, const plan::ModelShape& shape);

}  // namespace megatron::model
