#include "megatron/run/memory_check.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

#include "megatron/base/error.h"
#include "megatron/base/machine/machine_memory.h"
#include "megatron/base/progress.h"
#include "megatron/comm/agreement.h"
#include "megatron/comm/cuda_plugin.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/checkpoint_size.h"
#include "megatron/plan/cost/fit/memory_options.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/supervise/memory_folder.h"
#include "megatron/train/inputs.h"

namespace megatron::run {
namespace {

/// The GPUs of which a process that no launcher has started may use more than its own; 0: it may not.
int gpus_for_more_ranks() { return comm::place_from(comm::process_environment()) ? 0 : comm::num_cuda_devices(); }

plan::Room machine_where_memory_ran_out(const plan::ResolvedRun& run, int rank, const Shortage& shortage) {
  const auto place = comm::place_from(comm::process_environment());
  // Ranks that are threads share the memory of their process.
  const plan::LocalRanks ranks{.first = place ? rank : 0, .count = place ? 1 : run.grid.world_size()};
  plan::Room room{.held = [ranks, processor = kernels::instruction_set()](const plan::ResolvedRun& changed) {
    return plan::bytes_of_ranks(changed, ranks, plan::Holding::Training, processor);
  }};
  plan::RanOut out{.planned = room.held(run), .wanted = static_cast<std::int64_t>(shortage.wanted)};
  if (const auto machine = machine_memory()) {
    out.held = kernels::held_memory(at::kCPU).bytes;
    out.free = static_cast<std::int64_t>(machine->bytes) / (place ? place->local_size : 1);
    if (const auto limit = address_limit())
      out.free = std::min(out.free, static_cast<std::int64_t>(std::min<std::uint64_t>(limit->free_bytes, 1ULL << 62)));
  }
  room.bytes = plan::room_where_memory_ran_out(out);
  return room;
}

plan::Room gpu_where_memory_ran_out(const plan::ResolvedRun& run, int rank, const Shortage& shortage) {
  plan::RanOut out{.planned = plan::memory_of_rank(run, rank).total(),
                   .wanted = static_cast<std::int64_t>(shortage.wanted)};
  if (shortage.total > 0) {
    out.held = static_cast<std::int64_t>(shortage.held);
    out.free = static_cast<std::int64_t>(shortage.free);
  }
  return {.held = [](const plan::ResolvedRun& changed) { return plan::largest_memory(changed).total(); },
          .bytes = plan::room_where_memory_ran_out(out),
          .most_ranks = gpus_for_more_ranks()};
}

/// The ranks of this machine.
plan::LocalRanks ranks_here(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place) {
  if (!place) return {.first = 0, .count = run.grid.world_size()};
  return {.first = place->rank - place->local_rank, .count = place->local_size};
}

}  // namespace

void check_memory(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place, plan::Holding holding,
                  const plan::Besides& besides) {
  if (run.config.parallel.device == "cuda" || (place && place->local_rank != 0)) return;
  if (const auto machine = machine_memory())
    plan::check_memory(run, ranks_here(run, place), holding, *machine, kernels::instruction_set(), besides);
}

bool fits_amply(const plan::ResolvedRun& run, const std::optional<comm::LaunchedRank>& place, plan::Holding holding,
                const plan::Besides& besides) {
  const auto machine = machine_memory();
  return run.config.parallel.device != "cuda" && machine &&
         plan::fits_amply(run, ranks_here(run, place), holding, *machine, kernels::instruction_set(), besides);
}

void check_gpu_memory(const plan::ResolvedRun& run, const comm::Group& world, at::Device device, plan::Holding holding,
                      const plan::Besides& besides) {
  if (device.is_cpu()) return;
  comm::run_together(world, [&] {
    const auto memory = kernels::free_memory(device);
    if (!memory) return;
    plan::check_gpu_memory(run, world.rank(), holding,
                           {.free = static_cast<std::uint64_t>(memory->bytes),
                            .total = static_cast<std::uint64_t>(memory->total_bytes),
                            .gpus = gpus_for_more_ranks()},
                           besides);
  });
}

OutOfMemory out_of_planned_memory(const plan::ResolvedRun& run, int rank, at::Device device,
                                  const std::exception& error) {
  const auto* const named = dynamic_cast<const OutOfMemory*>(&error);
  const std::string holds = named != nullptr ? named->holds : "what a rank works on";
  const Shortage shortage = named != nullptr ? named->shortage : shortage_of(error);
  try {
    const std::string processor = kernels::instruction_set();
    const plan::Room room = device.is_cpu() ? machine_where_memory_ran_out(run, rank, shortage)
                                            : gpu_where_memory_ran_out(run, rank, shortage);
    return {holds, shortage, planned_text(plan::memory_of_rank(run, rank, processor)),
            options_text(options_that_fit(run, room))};
  } catch (const std::exception&) {  // there is no memory to plan in either
    return {holds, shortage};
  }
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
