#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/train/engine.h"

namespace megatron::train {

/// Where a run stands after its last whole iteration.
struct RunState {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;  ///< of the training order; skipped iterations consume theirs too
  std::int64_t schedule_samples = 0;  ///< that advanced the learning rate: those of iterations that were not skipped
  std::int64_t skipped_iterations = 0;
  std::int64_t validated_iteration = 0;  ///< after which the last validation was done; 0: none yet
};

/// This rank's slices of weights and optimizer state, named and shaped as in the whole model. The rows that pad the
/// vocabulary are left out: they take no part in the model, and their number depends on the layout.
std::vector<checkpoint::ShardedTensor> sharded_tensors(const Engine& engine);

/// Saves everything that going on needs under `folder`. Collective over the world. `recipe`: the resolved
/// configuration as TOML, kept in the metadata.
void save_run(const std::filesystem::path& folder, const RunState& state, const Engine& engine,
              const std::string& recipe, int keep_last);

/// Fills `engine` from the checkpoint of any layout in `folder`. Every rank calls it. Throws ConfigError where
/// something is missing or of another shape.
RunState load_run(const std::filesystem::path& folder, Engine& engine);

}  // namespace megatron::train
