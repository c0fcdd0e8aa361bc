#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "megatron/checkpoint/weights.h"
#include "megatron/families/hf_config.h"
#include "megatron/interchange/formats.h"

namespace megatron::interchange {

/// config.json of the folder.
families::FolderConfig read_config(const std::filesystem::path& folder);

/// The weights of a Hugging Face folder under our names. Throws ConfigError for a tensor that is missing, of another
/// shape than config.json says, or that no part of such a model uses (an adapter's, a quantized matrix's scales).
std::unique_ptr<checkpoint::WeightSource> open_hugging_face(const std::filesystem::path& folder);

/// Writes `weights` of the model `config` as a Hugging Face folder that transformers loads: config.json, safetensors
/// (with model.safetensors.index.json where there are several), the tokenizer's files. One tensor is in memory at a
/// time. `folder` must not exist, or be empty: it appears whole or not at all.
void export_hugging_face(const checkpoint::WeightSource& weights, const families::FolderConfig& config,
                         const std::filesystem::path& folder, const ExportOptions& options);

}  // namespace megatron::interchange
