#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megatron/plan/rules.h"
#include "megatron/train/engine.h"
#include "megatron/train/resume/run_state.h"

namespace megatron::train {

class MemoryCopies;

/// Where a run begins.
struct Start {
  RunState state = {};
  std::optional<std::filesystem::path> from =
      {};                                  ///< the checkpoint, or the folder of the weights; nothing: new weights
  bool weights_only = false;               ///< a run of its own, from the weights of another
  bool in_memory = false;                  ///< `from` is in the memory of nodes (checkpoint.memory_interval)
  std::vector<std::string> messages = {};  ///< what the user should know, the same on every rank
};

/// Fills the engine from the run's own checkpoints or, where it has none, from checkpoint.load, if that is set. Rank 0
/// chooses the folder and the checkpoints to try; every other rank must see the same ones. Where the newest checkpoint
/// is damaged on any rank or of a newer version, from the newest whole one before it; a message says so, and rank 0's
/// stderr at once. A damaged one of the run's own is marked, for pruning. `memory`: what nodes keep in memory counts as
/// the run's own checkpoints do, the newest first; it is cleared where the run begins with another.
/// Collective over the engine's world. Throws, the same on every rank: ConfigError where none is whole (a run never
/// starts over because of damage), where a whole one does not fit the run or where a rank sees another;
/// std::runtime_error where the system fails on a rank, which is no damage.
Start start_run(const plan::ResolvedRun& run, Engine& engine, MemoryCopies* memory = nullptr);

}  // namespace megatron::train
