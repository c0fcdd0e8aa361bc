#pragma once
#include <filesystem>
#include <optional>

#include "megatron/families/hf_config.h"

// The config.json of a Hugging Face folder.
namespace megatron::families {

/// What to do with weights that are damaged, unknown or not of a model that this program computes.
inline constexpr const char* kCopyAnew =
    "copy the whole folder again; docs/interchange.md says which models and files can be read";

/// Reads `folder`/config.json. Throws ConfigError as parse_config(), and where it cannot be read or has more than
/// 1 MiB.
FolderConfig read_config_json(const std::filesystem::path& folder);

/// The network of `folder` by its config.json alone; nothing where other files say more of it: where the folder may be
/// of another format (interchange/formats.h), or config.json counts depths of multi-token prediction, which weights may
/// lack. Throws ConfigError as interchange::model_config_of().
std::optional<config::ModelConfig> network_of_folder(const std::filesystem::path& folder);

}  // namespace megatron::families
