#pragma once
#include <filesystem>
#include <string>

namespace megatron::checkpoint {

struct ReshardOptions {
  int files = 1;              ///< that share each tensor's rows
  std::string dtype = {};     ///< of the weights, safetensors' name; empty: as they are
  bool weights_only = false;  ///< leaves the optimizer's state out
};

/// Writes the checkpoint that `from` means (find_checkpoint()) into the folder of checkpoints `to`, as its latest,
/// in as many files as `options` say. Holds a few MiB at a time. Any run loads either; fewer files suit copying, as
/// many as there are ranks suit loading. Throws Damage; ConfigError for a dtype that is no floating-point number's and
/// where `to`, which is locked meanwhile, holds checkpoints or a run writes there; and std::runtime_error where it
/// cannot be written; `to` is then as before. Returns the new iter_ folder.
std::filesystem::path reshard(const std::filesystem::path& from, const std::filesystem::path& to,
                              const ReshardOptions& options);

}  // namespace megatron::checkpoint
