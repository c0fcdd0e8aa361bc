#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megatron/checkpoint/weights.h"
#include "megatron/config/model_config.h"

namespace megatron::interchange {

/// In the metadata of a checkpoint: the names of the classes that its head tells apart, as labels_text().
constexpr const char* kLabels = "labels";
std::string labels_text(const std::vector<std::string>& labels);

/// The names of the classes that the model in `folder`, of any kind, tells apart; empty where it names none.
std::vector<std::string> labels_of(const std::filesystem::path& folder);

/// Whether both networks have the head of a task, `theirs` that of another one than `ours`.
bool has_other_head(const config::ModelConfig& theirs, const config::ModelConfig& ours);

/// The weights in `folder`, of any kind, to begin `model` with: without their head where has_other_head().
std::unique_ptr<checkpoint::WeightSource> open_weights_for(const std::filesystem::path& folder,
                                                           const config::ModelConfig& model);

}  // namespace megatron::interchange
