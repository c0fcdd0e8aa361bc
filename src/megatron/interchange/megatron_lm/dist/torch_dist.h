#pragma once
#include <filesystem>

// Megatron-LM's checkpoints of format "torch_dist", Megatron-Core's distributed checkpoints: iter_0000100/common.pt (a
// file of torch.save: arguments, counters), .metadata and __RANK_N.distcp (tensors of torch.distributed.checkpoint),
// metadata.json.
namespace megatron::interchange {

/// The iteration's folder that `folder` means, empty where it is none of this format.
std::filesystem::path find_torch_dist(const std::filesystem::path& folder);

}  // namespace megatron::interchange
