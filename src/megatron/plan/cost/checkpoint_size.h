#pragma once
#include <cstdint>

#include "megatron/plan/rules.h"

// What checkpoints take: arithmetic, before there is one.
namespace megatron::plan {

/// Bytes of all tensors of a checkpoint of the run, each once: masters or weights, and the optimizer's state.
std::int64_t checkpoint_bytes(const ResolvedRun& run);

/// Of how many checkpoints a node keeps its ranks' share in memory (checkpoint.memory_interval) at most: the newest and
/// the one that is being written, and with `several_nodes` and checkpoint.memory_neighbours as much for the node before
/// it. 0: there are none.
int checkpoints_in_memory(const config::CheckpointConfig& checkpoint, bool several_nodes);

}  // namespace megatron::plan
