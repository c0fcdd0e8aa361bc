#pragma once
#include <nlohmann/json_fwd.hpp>

#include "megatron/config/model_config.h"
#include "megatron/interchange/json_fields.h"

// config.json of a T5 folder (v1.0: ReLU and a tied head; v1.1 and mT5: gated GELU and a head of its own).
namespace megatron::interchange {

/// The network that the fields describe; model_type is t5 or mt5. Throws ConfigError for what none of these has.
config::ModelConfig t5_model(const nlohmann::json& object, JsonFields& fields);

/// Adds the fields of `model`, which can_be_t5().
void write_t5(const config::ModelConfig& model, nlohmann::json& object);

/// Whether a folder of transformers can say what `model` is, whose architecture is t5.
bool can_be_t5(const config::ModelConfig& model);

}  // namespace megatron::interchange
