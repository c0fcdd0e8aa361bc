#pragma once
#include <c10/core/Device.h>

#include <exception>
#include <optional>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/comm/group.h"
#include "megatron/comm/processes/environment.h"
#include "megatron/plan/cost/memory_fit.h"
#include "megatron/plan/ranks/rank_grid.h"

namespace megatron::run {

/// Throws ConfigError where what the ranks of this machine will hold on its processors does not fit into its memory.
/// Looked at once a machine, by the process that starts the ranks or the first of them: no rank takes memory before
/// all have met. Does nothing for ranks on GPUs, which check_gpu_memory() is for, or where the system does not tell
/// what it has.
void check_memory(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place, plan::Holding holding,
                  const plan::Besides& besides = {});

/// Whether that fits amply (plan::fits_amply()); also asked by other ranks of the machine than the first. False on
/// GPUs, and where the system does not tell what it has.
bool fits_amply(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place, plan::Holding holding,
                const plan::Besides& besides);

/// Compares what each rank will hold with the memory of its GPU, `device`, when the ranks have met and before they take
/// memory. Where one of them lacks memory all throw what plan::check_gpu_memory() does, as comm::run_together().
/// Collective over `world`. Does nothing on a CPU, or where the device does not tell what it has.
void check_gpu_memory(const plan::ResolvedRun& run, const comm::Group& world, at::Device device, plan::Holding holding,
                      const plan::Besides& besides = {});

/// The error of memory that ran out in `rank`, which trains on `device`: with what it was planned to hold, and options
/// by which it would fit.
OutOfMemory out_of_planned_memory(const plan::ResolvedRun& run, int rank, at::Device device,
                                  const std::exception& error);

/// Does `work` of such a rank, whose errors of memory become those of out_of_planned_memory(). The other ranks of
/// `world` are told first: to find options takes a moment.
template <class Work>
decltype(auto) with_planned_memory(const plan::ResolvedRun& run, const comm::Group& world, at::Device device,
                                   Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::exception& error) {
    if (dynamic_cast<const OutOfMemory*>(&error) == nullptr && !is_out_of_memory(error)) throw;
    if (world.size() > 1) world.abort(concat(plan::rank_name(run.grid, world.rank()), ": ", error.what()));
    throw out_of_planned_memory(run, world.rank(), device, error);
  }
}

/// Throws ConfigError where the checkpoints that this machine's ranks keep in memory (checkpoint.memory_interval) do
/// not fit into checkpoint.memory_folder in place of what the run has left there, or that is no folder. Looked at by
/// the same process as check_memory(), on machines with GPUs too.
void check_memory_folder(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place);

}  // namespace megatron::run
