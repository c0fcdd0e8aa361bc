#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace megatron::app {

/// Pictures of the run whose folder, checkpoints or single checkpoint `model` is, as SVG files: "curves", its losses so
/// far, and "schedule", a step of its pipeline if it has one. Empty where no run has written there.
std::map<std::string, std::function<std::string()>> run_pictures(const std::filesystem::path& model);

}  // namespace megatron::app
