#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/weights.h"
#include "megatron/plan/rules.h"
#include "megatron/train/engine.h"

namespace megatron::finetune {

/// Which weights of the model in `folder`, of any kind, a model with the head of a task takes; reads none. Returns
/// what the user should know, one message each: that the folder's head is of another task, which parameters of the head
/// are drawn anew, and what of the folder has no place. Throws ConfigError where anything else is missing or does not
/// fit, or the network is another.
std::vector<std::string> check_weights(const std::filesystem::path& folder, const plan::ResolvedRun& run);

/// Throws ConfigError where the model in `folder` names the classes of the task in another order than `labels`: its
/// logits would be taken for each other's. Names that are others altogether do not matter.
void check_labels(const std::filesystem::path& folder, const std::vector<std::string>& labels);

/// Fills the engine with them. Parameters that the folder does not have stay as they were drawn from the seed. Not
/// collective.
void load_weights(const std::filesystem::path& folder, train::Engine& engine, const plan::ResolvedRun& run);

}  // namespace megatron::finetune
