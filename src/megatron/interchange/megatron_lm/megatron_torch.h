#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "megatron/checkpoint/weights.h"
#include "megatron/config/model_config.h"

// Megatron-LM's checkpoints of format "torch": iter_0000100/mp_rank_TT[_PPP]/model_optim_rng.pt, a file of torch.save
// for each rank of tensor and pipeline parallelism (formats of Megatron-LM's training/checkpointing.py, version 2.0 and
// later).
namespace megatron::interchange {

/// The iter_ or release folder that `folder` means: itself, or what its latest_checkpointed_iteration.txt names. Empty
/// where it is no such folder.
std::filesystem::path find_megatron(const std::filesystem::path& folder);

/// The folder that its latest_checkpointed_iteration.txt names, whatever is in it; empty where there is no such file.
std::filesystem::path named_iteration(const std::filesystem::path& folder);
/// named_iteration(); also empty where a run of this program has saved in `folder` since.
std::filesystem::path latest_megatron(const std::filesystem::path& folder);

/// The weights of a GPT, BERT or T5, saved with any tensor, pipeline and virtual pipeline parallelism, under our names:
/// Megatron-Core's names, with layer norms of their own or fused into the linear layers, and the older
/// language_model.…. Rows that pad the vocabulary are left out where the arguments say how many tokens it has. Throws
/// ConfigError naming the file for anything that is missing, unknown, hostile or of another shape.
std::unique_ptr<checkpoint::WeightSource> open_megatron(const std::filesystem::path& folder);

/// The network that the saved arguments and the names of the tensors describe. Options that this program does not
/// compute are refused by name.
config::ModelConfig megatron_model(const std::filesystem::path& folder);

}  // namespace megatron::interchange
