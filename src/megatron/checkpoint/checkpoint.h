#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/manifest.h"
#include "megatron/comm/group.h"

namespace megatron::checkpoint {

/// A tensor of the run on this rank: which slice of which global tensor it is. Names: the parameter's own for weights,
/// "optimizer.exp_avg.<name>", "optimizer.exp_avg_sq.<name>".
struct ShardedTensor {
  std::string name;
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;  ///< of this rank's slice in each dimension
  at::Tensor data;                   ///< the slice
  /// Some rank holds the same elements as its own, perhaps cut in other places: loaded, but not saved.
  bool is_copy = false;
};

/// Counters and anything else that is not a tensor, as text (JSON values).
using Metadata = std::map<std::string, std::string>;

/// Writes `folder`/iter_0000100/ (safetensors + manifest.json): to a temporary folder, checksummed (xxh3), fsynced,
/// renamed, `latest` last; then removes all but the newest `keep_last` (0: none). Each slice is written once: ranks
/// that hold the same slice share the work. Rank 0's `metadata` is kept. Collective over `world`; a failure on one rank
/// is a std::runtime_error on every rank, and leaves the folder as it was (but see publish()). While a run is under
/// way: saver.h.
void save(const std::filesystem::path& folder, std::int64_t iteration, const std::vector<ShardedTensor>& tensors,
          const Metadata& metadata, const comm::Group& world, int keep_last = 0);

struct Loaded {
  std::int64_t iteration = 0;
  Metadata metadata;
  std::uint64_t bytes_read = 0;  ///< on this rank, from the files of tensors
};

/// Fills `tensors` (any slicing, any number of ranks, any floating-point dtype) from the checkpoint in `folder` (a
/// run's folder or its folder of checkpoints: its `latest`; or one iter_ folder). Not collective: every rank reads the
/// slices it needs, in blocks of 1 MiB that are compared with their checksums (read_plan.h: which, and how many bytes).
/// Throws Damage naming file and byte offset for anything missing, truncated or changed, ConfigError for a tensor that
/// is not there or has another shape; `tensors` are then partly filled.
Loaded load(const std::filesystem::path& folder, const std::vector<ShardedTensor>& tensors);

/// Calls `read`, which reads of `folder` the newest checkpoint: again where it has thrown because a running one
/// has removed that one meanwhile. Throws what `read` throws, or std::runtime_error where one checkpoint was named and
/// is gone, or each of ten in turn.
void read_newest(const std::filesystem::path& folder, const std::function<void()>& read);

/// The checkpoint that verify() has read.
struct Verified {
  std::filesystem::path folder;
  Manifest manifest;
};

/// Reads every byte of a checkpoint. What is wrong with it, one message each; empty: it is whole. Of a run's folder the
/// newest, and if that is removed meanwhile (a run under way prunes) the one that is the newest then; throws
/// std::runtime_error where one checkpoint was named and is removed meanwhile: that is no damage. `verified`: gets
/// what was read, of one that may be gone by then.
std::vector<std::string> verify(const std::filesystem::path& folder, Verified* verified = nullptr);

}  // namespace megatron::checkpoint
