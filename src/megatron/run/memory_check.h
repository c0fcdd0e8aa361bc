#pragma once
#include <optional>

#include "megatron/comm/processes/environment.h"
#include "megatron/plan/cost/memory_fit.h"

namespace megatron::run {

/// Throws ConfigError where what the ranks of this machine will hold on its processors does not fit into its memory.
/// Looked at once a machine, by the process that starts the ranks or the first of them: no rank takes memory before
/// all have met. Does nothing for ranks on GPUs, or where the system does not tell what it has.
void check_memory(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place, plan::Holding holding,
                  const plan::Besides& besides = {});

/// Throws ConfigError where the checkpoints that this machine's ranks keep in memory (checkpoint.memory_interval) do
/// not fit into checkpoint.memory_folder in place of what the run has left there, or that is no folder. Looked at as
/// above, on machines with GPUs too.
void check_memory_folder(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place);

}  // namespace megatron::run
