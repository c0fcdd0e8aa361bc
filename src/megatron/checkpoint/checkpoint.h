#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/plan/parameters.h"

namespace megatron::checkpoint {

/// A tensor of the run on this rank: which slice of which global tensor it is. Names: the parameter's own for weights,
/// "optimizer.exp_avg.<name>", "optimizer.exp_avg_sq.<name>".
struct ShardedTensor {
  std::string name;
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;  ///< of this rank's slice in each dimension
  at::Tensor data;                   ///< the slice
};

/// Counters and anything else that is not a tensor, as text (JSON values).
using Metadata = std::map<std::string, std::string>;

/// Writes `folder`/iter_0000100/ (safetensors + manifest.json): to a temporary folder, checksummed (xxh3), fsynced,
/// renamed, `latest` last; then removes all but the newest `keep_last` (0: keeps all). Each slice is written once:
/// replicas along `dp` share the work. Collective over `world`.
void save(const std::filesystem::path& folder, std::int64_t iteration, const std::vector<ShardedTensor>& tensors,
          const Metadata& metadata, const comm::Group& world, int keep_last);

struct Loaded {
  std::int64_t iteration = 0;
  Metadata metadata;
};

/// Fills `tensors` (any slicing, any number of ranks) from the checkpoint in `folder` (a run's checkpoint folder: its
/// `latest`; or one iter_ folder). Every rank reads only the bytes it needs. Throws ConfigError naming file and byte
/// offset for anything missing, truncated, changed or of another shape.
Loaded load(const std::filesystem::path& folder, const std::vector<ShardedTensor>& tensors);

/// Whether `folder` holds a loadable `latest`.
bool has_checkpoint(const std::filesystem::path& folder);

}  // namespace megatron::checkpoint
