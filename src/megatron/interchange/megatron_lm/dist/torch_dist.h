#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/interchange/megatron_lm/dist/dcp_metadata.h"
#include "megatron/plan/parameters/parameters.h"

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

/// The name that Megatron-Core's T5 gives one of our tensors besides, since it registers the module twice: of
/// the optimizer's state it may be the only one. Empty where there is none.
std::string second_dist_name(const std::string& ours);

/// How many layers the stack has that our tensor `ours` of a layer belongs to.
std::int64_t layers_of_stack(const plan::ModelShape& shape, const std::string& ours);

/// The iteration's folder that `folder` means, empty where it is none of this format.
std::filesystem::path find_torch_dist(const std::filesystem::path& folder);

}  // namespace megatron::interchange
