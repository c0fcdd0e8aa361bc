#pragma once
#include <filesystem>

#include "megatron/interchange/adapters/adapters.h"

// PEFT's folders: adapter_config.json and adapter_model.safetensors (github.com/huggingface/peft).
namespace megatron::interchange {

/// Judged by the files that are there.
bool is_peft(const std::filesystem::path& folder);

/// As adapter_base().
std::string peft_base(const std::filesystem::path& folder);

/// As open_adapter().
OpenedAdapter open_peft(const std::filesystem::path& folder, const config::ModelConfig& model,
                        const std::filesystem::path& base, AdapterUse use);

}  // namespace megatron::interchange
