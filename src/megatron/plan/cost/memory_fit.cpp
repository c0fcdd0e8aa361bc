#include "megatron/plan/cost/memory_fit.h"

#include <algorithm>
#include <map>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/plan/cost/fit/memory_options.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/parameters/blocks.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/schedule/simulate.h"

namespace megatron::plan {
namespace {

constexpr const char* kPlanShows = "megatron plan shows what a rank holds";

/// Of each pipeline rank.
std::vector<RankActivations> peak_activations(const ResolvedRun& run) {
  if (run.parts.size() == 1)  // a microbatch's backward follows its forward, however many there are
    return {static_cast<double>(stage_activation_bytes(run.config, run.shape, run.parts[0]))};
  const schedule::Timeline timeline = schedule::simulate(pipeline_program(run, run.microbatches_per_step),
                                                         stage_costs(run.config, run.shape, run.parts));
  std::vector<RankActivations> activations;
  for (int rank = 0; rank < run.placement.num_ranks(); ++rank) activations.emplace_back(timeline, rank);
  return activations;
}

std::string bytes_text(std::uint64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

/// The share of `ranks` in what all ranks of the world hold.
std::int64_t share_of(LocalRanks ranks, std::int64_t bytes, int world_size) {
  return static_cast<std::int64_t>(static_cast<double>(bytes) * std::min(ranks.count, world_size) / world_size);
}

}  // namespace

std::int64_t forward_bytes(const ResolvedRun& run, std::int64_t samples, std::int64_t tokens) {
  config::RunConfig config = run.config;
  config.train.micro_batch_size = samples;
  config.data.seq_length = tokens;
  const std::int64_t ranks_of_copy = run.grid.world_size() / run.grid.sample_shares();
  // One layer at a time: those at the beginning may be of another kind than the last.
  const std::int64_t bytes = std::max(layer_activation_bytes(config, run.shape.layer(0)),
                                      layer_activation_bytes(config, run.shape.layer(run.shape.num_layers - 1)));
  return bytes * ranks_of_copy * run.grid.sample_shares();
}

namespace {

/// The weights of a rank, in few bits where blocks hold them, and the largest as it is read.
std::int64_t bytes_in_blocks(const ResolvedRun& run, GgufType weights, int tp_rank, int pp_rank) {
  const std::vector<StageSpec> parts = parts_of_rank(run.parts, run.placement, pp_rank);
  const std::int64_t element = element_bytes_of(run.config).value;
  const std::vector<ParameterSpec> specs = model_parameters(run.shape, run.config.parallel.tp, tp_rank, parts);
  std::int64_t bytes = constants_of_norms(run.shape, specs) * element, largest = 0;
  for (const ParameterSpec& spec : specs) {
    bytes += fits_blocks(spec) ? block_bytes(spec, block_type(spec, weights)) : spec.local_size() * element;
    if (fits_blocks(spec)) largest = std::max<std::int64_t>(largest, spec.local_size() * std::int64_t{sizeof(float)});
  }
  return bytes + largest;
}

}  // namespace

MemoryPlan memory_of_rank(const ResolvedRun& run, int rank, std::string_view instruction_set) {
  const Coord coord = run.grid.coord_of(rank);
  const int tp_rank = coord[static_cast<std::size_t>(Axis::Tp)], pp_rank = coord[static_cast<std::size_t>(Axis::Pp)];
  return memory_plan(run, tp_rank, pp_rank, peak_activations(run)[static_cast<std::size_t>(pp_rank)], instruction_set);
}

std::int64_t bytes_of_ranks(const ResolvedRun& run, LocalRanks ranks, Holding holding,
                            std::string_view instruction_set) {
  const bool trains = holding.what == Holding::What::Training;
  const std::vector<RankActivations> activations =
      trains ? peak_activations(run)
             : std::vector<RankActivations>(static_cast<std::size_t>(run.grid.size(Axis::Pp)), 0.0);
  std::map<std::pair<int, int>, std::int64_t> of_place;  // ranks of one place in their groups hold the same
  std::int64_t sum = 0;
  for (int rank = ranks.first; rank < std::min(ranks.first + ranks.count, run.grid.world_size()); ++rank) {
    const Coord coord = run.grid.coord_of(rank);
    const int tp_rank = coord[static_cast<std::size_t>(Axis::Tp)], pp_rank = coord[static_cast<std::size_t>(Axis::Pp)];
    const auto [place, is_new] = of_place.try_emplace({tp_rank, pp_rank}, 0);
    if (is_new && holding.blocks) {
      place->second = bytes_in_blocks(run, *holding.blocks, tp_rank, pp_rank);
    } else if (is_new) {
      const MemoryPlan memory =
          memory_plan(run, tp_rank, pp_rank, activations[static_cast<std::size_t>(pp_rank)], instruction_set);
      std::int64_t packed = memory.packed_weights;  // of weights alone what products of float32 pack meanwhile
      if (!trains && packs_weights(run.config, instruction_set))
        packed = holding.copies ? forward_copy_bytes(run, tp_rank, pp_rank, instruction_set) : 0;
      place->second = trains ? memory.total() : memory.parameters + packed;
    }
    sum += place->second;
  }
  return sum;
}

namespace {

const char* what_is_held(const ResolvedRun& run, Holding holding) {
  return holding.what == Holding::What::Weights ? "the weights"
         : run.teacher ? "parameters, gradients, optimizer state, activations and the weights of distill.teacher"
                       : "parameters, gradients, optimizer state and activations";
}

std::string and_besides(const Besides& besides) {
  return besides.what.empty() ? "" : concat(", and ", besides.what, ",");
}

/// The fix: the options that fit, or `usual` where there are none.
std::string fix_of(const ResolvedRun& run, const Room& room, const std::string& usual) {
  const std::string options = options_text(options_that_fit(run, room));
  return options.empty() ? usual : concat(options, "; ", kPlanShows);
}

/// What a rank holds that holds most.
std::int64_t bytes_of_largest_rank(const ResolvedRun& run) { return largest_memory(run).total(); }

}  // namespace

bool fits_amply(const ResolvedRun& run, LocalRanks ranks, Holding holding, const MachineMemory& machine,
                std::string_view instruction_set, const Besides& besides) {
  const std::int64_t bytes =
      bytes_of_ranks(run, ranks, holding, instruction_set) + share_of(ranks, besides.bytes, run.grid.world_size());
  return static_cast<std::uint64_t>(bytes) <= machine.without_swap / 8 * 7;
}

void check_memory(const ResolvedRun& run, LocalRanks ranks, Holding holding, const MachineMemory& machine,
                  std::string_view instruction_set, const Besides& besides) {
  const auto held = static_cast<std::uint64_t>(bytes_of_ranks(run, ranks, holding, instruction_set));
  const std::int64_t more = share_of(ranks, besides.bytes, run.grid.world_size());
  const auto bytes = held + static_cast<std::uint64_t>(more);
  if (bytes <= machine.bytes) return;
  const bool trains = holding.what == Holding::What::Training;
  std::string fix = "--dtype bf16 where the weights are wider, or a machine with more memory";
  if (!besides.fix.empty() && (trains || held <= machine.bytes))
    fix = besides.fix;
  else if (trains)
    fix = fix_of(
        run,
        {.held =
             [&](const ResolvedRun& changed) {
               return bytes_of_ranks(changed, ranks, holding, instruction_set) + more;
             },
         .bytes = machine.bytes},
        concat(
            "fewer --num-layers, a smaller --hidden-size, --vocab-size, --seq-length or --micro-batch-size, or ranks "
            "on more machines; ",
            kPlanShows));
  throw ConfigError(
      rule_got_fix(concat("This machine's memory must hold ", what_is_held(run, holding), and_besides(besides),
                          " of its ", ranks.count > 1 ? concat(ranks.count, " ranks.") : "rank."),
                   concat(bytes_text(bytes), ", and ", machine.limit, ": ", bytes_text(machine.bytes)), fix));
}

void check_gpu_memory(const ResolvedRun& run, int rank, Holding holding, const GpuMemory& gpu, const Besides& besides) {
  const LocalRanks own{.first = rank, .count = 1};
  const auto held = static_cast<std::uint64_t>(bytes_of_ranks(run, own, holding));
  const std::int64_t more = share_of(own, besides.bytes, run.grid.world_size());
  const auto bytes = held + static_cast<std::uint64_t>(more);
  if (bytes <= gpu.free) return;
  const bool trains = holding.what == Holding::What::Training;
  std::string fix =
      "--dtype bf16 where the weights are wider, --tp with a GPU for each rank, or a GPU with more memory";
  if (!besides.fix.empty() && (trains || held <= gpu.free))
    fix = besides.fix;
  else if (trains)
    fix =
        fix_of(run,
               {.held = [&](const ResolvedRun& changed) { return bytes_of_largest_rank(changed) + more; },
                .bytes = gpu.free,
                .most_ranks = gpu.gpus},
               concat("fewer --num-layers, a smaller --hidden-size, --vocab-size, --seq-length or --micro-batch-size, "
                      "or ranks on more GPUs; ",
                      kPlanShows));
  const std::string message = rule_got_fix(
      concat("A GPU's memory must hold ", what_is_held(run, holding), and_besides(besides), " of its rank."),
      concat(bytes_text(bytes), ", and free are ", bytes_text(gpu.free), " of ", bytes_text(gpu.total)), fix);
  if (bytes > gpu.total) throw ConfigError(message);
  throw std::runtime_error(message);
}

}  // namespace megatron::plan
