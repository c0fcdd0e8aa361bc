#pragma once
#include <filesystem>
#include <vector>

#include "megatron/serve/service.h"

namespace megatron::app {

/// Pictures of the run whose folder, checkpoints or single checkpoint `model` is: "curves", its losses so far; further
/// figures of its steps, and how its experts were used, as far as it has them; "schedule", a step of its pipeline if it
/// has one. Empty where no run has written there.
std::vector<serve::Picture> run_pictures(const std::filesystem::path& model);

}  // namespace megatron::app
