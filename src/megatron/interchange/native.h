#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "megatron/families/hf_config.h"

// Our own checkpoints as one of the formats (formats.h).
namespace megatron::interchange {

/// In the metadata of an imported checkpoint: the config.json it came from, which says what a recipe cannot.
constexpr const char* kConfigKey = "hugging_face_config";

/// The config.json that the checkpoint `found` (an iter_ folder) was imported from; none where it was not imported.
std::optional<families::FolderConfig> imported_config(const std::filesystem::path& found);

}  // namespace megatron::interchange
