#include "megatron/run/memory_check.h"

#include "megatron/kernels/runtime.h"

namespace megatron::run {

void check_memory(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place, plan::Holding holding,
                  const plan::Besides& besides) {
  if (run.config.parallel.device == "cuda" || (place && place->local_rank != 0)) return;
  const auto machine = machine_memory();
  if (!machine) return;
  const plan::LocalRanks ranks{.first = place ? place->rank : 0,
                               .count = place ? place->local_size : run.grid.world_size()};
  plan::check_memory(run, ranks, holding, *machine, kernels::instruction_set(), besides);
}

}  // namespace megatron::run
