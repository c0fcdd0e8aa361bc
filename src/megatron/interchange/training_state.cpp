#include "megatron/interchange/training_state.h"

#include <nlohmann/json.hpp>

#include "megatron/config/options.h"

namespace megatron::interchange {

checkpoint::Metadata TrainingState::metadata() const {
  checkpoint::Metadata metadata = loss_scale;
  metadata["consumed_samples"] = std::to_string(consumed_samples);
  metadata["schedule_samples"] = std::to_string(schedule_samples);
  metadata["skipped_iterations"] = std::to_string(skipped_iterations);
  metadata["validated_iteration"] = std::to_string(validated_iteration);
  metadata["optimizer_steps"] = std::to_string(optimizer_steps);
  if (schedule_samples > consumed_samples || optimizer_steps > iteration) metadata[kRenumbered] = "true";
  metadata["optimizer"] = nlohmann::json(optimizer).dump();
  metadata["recipe"] = nlohmann::json(config::save_toml(recipe)).dump();
  return metadata;
}

std::string state_name(const std::string& kind, const std::string& parameter) {
  return "optimizer." + kind + "." + parameter;
}

}  // namespace megatron::interchange
