#pragma once
#include <string>

#include "megatron/config/run_config.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/rule_list.h"

namespace megatron::plan {

/// What plans must know of a kind of model besides its traits (config/tables/model_kinds.h): models/NAME/plan.cpp.
struct ModelKind {
  /// Fills in the options of its own that were left at 0.
  void (*resolve)(config::RunConfig& config) = nullptr;
  /// Its rules besides those of all models.
  void (*check)(const config::ModelConfig& model, Rules& rules) = nullptr;
  /// What a model of the kind is besides its layers' sizes.
  void (*describe)(const config::ModelConfig& model, ModelShape& shape) = nullptr;
};

/// The kind that model.architecture names (config::model_kind_row).
const ModelKind& model_kind(const std::string& architecture);

}  // namespace megatron::plan
