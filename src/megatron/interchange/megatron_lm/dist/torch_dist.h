#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/interchange/megatron_lm/dist/dcp_metadata.h"

// Megatron-LM's checkpoints of format "torch_dist", Megatron-Core's distributed checkpoints: iter_0000100/common.pt (a
// file of torch.save: arguments, counters), .metadata and __RANK_N.distcp (tensors of torch.distributed.checkpoint),
// metadata.json.
namespace megatron::interchange {

/// The names that Megatron-Core may give one of our tensors, and the layer that it is of a tensor of all layers.
struct DistName {
  std::string name;
  std::int64_t layer = -1;  ///< -1: it has a tensor of its own
};
std::vector<DistName> dist_names(const std::string& ours);

/// The iteration's folder that `folder` means, empty where it is none of this format.
std::filesystem::path find_torch_dist(const std::filesystem::path& folder);

}  // namespace megatron::interchange
