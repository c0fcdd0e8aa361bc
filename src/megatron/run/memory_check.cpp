#include "megatron/run/memory_check.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/checkpoint_size.h"
#include "megatron/supervise/memory_folder.h"
#include "megatron/train/inputs.h"

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

void check_memory_folder(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place) {
  const config::CheckpointConfig& checkpoint = run.config.checkpoint;
  if (checkpoint.memory_interval <= 0 || (place && place->local_rank != 0)) return;
  const int world = run.grid.world_size(), here = place ? place->local_size : world;
  const int kept = plan::checkpoints_in_memory(checkpoint, here < world);
  const double bytes = static_cast<double>(plan::checkpoint_bytes(run)) * kept * here / world;
  std::error_code error;
  const auto space = std::filesystem::space(checkpoint.memory_folder, error);
  if (error || !std::filesystem::is_directory(checkpoint.memory_folder, error))
    throw ConfigError(rule_got_fix("checkpoint.memory_folder must be a folder.",
                                   concat("'", checkpoint.memory_folder, "'", error ? ": " + error.message() : ""),
                                   "--checkpoint.memory_folder /dev/shm"));
  const double own =
      static_cast<double>(supervise::bytes_in_memory(checkpoint.memory_folder, train::save_folder(run.config)));
  double left = static_cast<double>(space.available);
  if (const auto machine = machine_memory(); machine && supervise::is_memory(checkpoint.memory_folder))
    left = std::min(left, static_cast<double>(machine->bytes));
  if (bytes <= left + own) return;
  throw ConfigError(rule_got_fix(
      concat("checkpoint.memory_folder must have room for ", kept, " checkpoints' share of ", here,
             here == 1 ? " rank" : " ranks", " (checkpoint.memory_interval)."),
      concat(human_bytes(bytes), ", and ", human_bytes(left + own), " free in ", checkpoint.memory_folder),
      concat("--checkpoint.memory_interval 0", kept > 2 ? "; --checkpoint.memory_neighbours false takes half" : "",
             "; --checkpoint.memory_folder FOLDER, on a disk of each node")));
}

}  // namespace megatron::run
