#pragma once
#include <optional>

#include "megatron/comm/processes/rendezvous.h"
#include "megatron/plan/cost/memory_fit.h"

namespace megatron::run {

/// Throws ConfigError where what the ranks of this machine will hold on its processors does not fit into its memory.
/// Looked at once a machine, by the process that starts the ranks or the first of them: no rank takes memory before
/// all have met. Does nothing for ranks on GPUs, or where the system does not tell what it has.
void check_memory(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place, plan::Holding holding,
                  const plan::Besides& besides = {});

}  // namespace megatron::run
