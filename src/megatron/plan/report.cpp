#include "megatron/plan/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/plan/cost/checkpoint_size.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/cost/sequence_exchange.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/plan/parameters/buffer_layout.h"
#include "megatron/plan/parameters/fp8.h"
#include "megatron/plan/parameters/shards.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/plan/ranks/rank_roles.h"
#include "megatron/plan/ranks/sequence_share.h"
#include "megatron/plan/steps/batch_plan.h"

namespace megatron::plan {
namespace {

using nlohmann::json;

/// The ranks that hold the word embedding or an output layer, by pipeline.
std::vector<std::vector<int>> embedding_groups(const ResolvedRun& run) {
  for (const SharedCopies& copies : shared_copies(run.shape, run.parts, run.placement)) {
    if (!run.shape.encoder_decoder() || !copies.name.starts_with("embedding.")) continue;
    std::vector<std::vector<int>> groups = run.grid.groups({Axis::Pp});
    for (std::vector<int>& ranks : groups) {
      std::vector<int> holders;
      for (const int rank : copies.pipeline_ranks) holders.push_back(ranks.at(static_cast<std::size_t>(rank)));
      ranks = std::move(holders);
    }
    return groups;
  }
  return run.grid.embedding_groups(run.placement);
}

json groups_of(const ResolvedRun& run) {
  const RankGrid& grid = run.grid;
  const RankRoles roles(grid);
  const auto data = roles.groups([](const RankRoles& r, int rank) { return r.samples(rank); });
  json groups = {{"tensor", grid.groups({Axis::Tp})},
                 {"pipeline", grid.groups({Axis::Pp})},
                 {"data", data},
                 {"model", grid.groups({Axis::Tp, Axis::Pp})},
                 {"embedding", embedding_groups(run)},
                 {"position_embedding", run.shape.mtp_depths > 0 ? grid.embedding_groups(run.placement)
                                                                 : grid.position_embedding_groups(run.placement)}};
  if (grid.sequence_shares() > 1) {
    groups["sequence"] = roles.groups([](const RankRoles& r, int rank) { return r.sequence(rank); });
    groups["gradients"] = roles.groups([](const RankRoles& r, int rank) { return r.gradients(rank); });
  }
  if (const RankRoles of_experts = roles_of(run); of_experts.experts_apart()) {
    groups["experts"] = of_experts.groups([](const RankRoles& r, int rank) { return r.experts(rank); });
    groups["expert_gradients"] =
        of_experts.groups([](const RankRoles& r, int rank) { return r.gradients(rank, Weights::Experts); });
    if (of_experts.split_otherwise()) {
      groups["expert_slices"] =
          of_experts.groups([](const RankRoles& r, int rank) { return r.tensor(rank, Weights::Experts); });
      groups["expert_copies"] = of_experts.groups([](const RankRoles& r, int rank) { return r.expert_copy(rank); });
    }
  }
  return groups;
}

/// Of ranks that share sequences: the positions that each has, [begin, end), and how they attend to all of them.
json sequence_of(const ResolvedRun& run) {
  const auto positions_of = [&](std::int64_t length) {
    json positions = json::array();
    for (int rank = 0; rank < run.grid.sequence_shares(); ++rank) {
      json pieces = json::array();
      for (const Positions& piece : SequenceShare{run.grid.sequence_shares(), rank}.pieces(length))
        pieces.push_back({piece.begin, piece.end});
      positions.push_back(std::move(pieces));
    }
    return positions;
  };
  json sequence = {{"positions", positions_of(run.config.data.seq_length)},
                   {"exchange", name_of(sequence_exchange(run.config, run.shape))}};
  if (run.shape.encoder_decoder()) sequence["decoder_positions"] = positions_of(run.config.data.decoder_seq_length);
  return sequence;
}

/// Every parameter in forward order. `slices`: by tensor-parallel rank, of experts by the rank among those that split
/// them (`split_over` "etp" where these are others), the ranges along `split_dim` that it holds; null where each rank
/// holds the whole.
json parameters_of(const ResolvedRun& run) {
  const int tp = run.grid.size(Axis::Tp), etp = expert_layout(run.config.parallel).etp;
  json all = json::array();
  for (int slice = 0; slice < std::max(tp, etp); ++slice) {
    const int tp_rank = std::min(slice, tp - 1);
    const ExpertShare experts{.etp = etp, .etp_rank = std::min(slice, etp - 1)};
    std::vector<ParameterSpec> specs = model_parameters(run.shape, tp, tp_rank, run.parts, experts);
    for (ParameterSpec& adapter : adapter_parameters(run.shape, tp, tp_rank, run.parts, experts))
      specs.push_back(std::move(adapter));
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const ParameterSpec& spec = specs[i];
      if (slice == 0) {
        all.push_back({{"name", spec.name},
                       {"shape", spec.shape},
                       {"split_dim", spec.replicated() ? json() : json(spec.split_dim)},
                       {"slices", spec.replicated() ? json() : json::array()},
                       {"stage", spec.stage},
                       {"weight_decay", spec.weight_decay}});
        if (spec.of_expert && etp != tp) all.back()["split_over"] = "etp";
      }
      if (spec.replicated() || slice >= (spec.of_expert ? etp : tp)) continue;
      json ranges = json::array();
      for (const ShardSlice& piece : spec.pieces) ranges.push_back({piece.offset, piece.offset + piece.length});
      all[i]["slices"].push_back(std::move(ranges));
    }
  }
  return all;
}

/// Of each data-parallel rank, at most 64: its part of each bucket, and of which parameters that is what.
json shards_of(const ResolvedRun& run, const BufferLayout& layout, const auto& name_of) {
  constexpr std::size_t kMaxListed = 64;
  const auto range = [](const Range& r) { return json{r.begin, r.end}; };
  const std::vector<int> sharing = roles_of(run).gradients(0).ranks;
  json ranks = json::array();
  for (std::size_t i = 0; i < sharing.size() && i < kMaxListed; ++i) {
    json own = json::array();
    for (const Shard& shard : shards(layout, owners_of(run, sharing[i]))) {
      json parts = json::array();
      for (const ParameterRange& part : shard.parameters)
        parts.push_back({{"name", name_of(part.parameter)},
                         {"world", range(part.world)},
                         {"local", range(part.local)},
                         {"param", range(part.param)}});
      own.push_back({{"world", range(shard.world)}, {"parameters", parts}});
    }
    ranks.push_back(std::move(own));
  }
  return ranks;
}

/// Where parameters that are gathered take turns, and in which order a pass over each stage reads them.
json parameter_pool_of(const ResolvedRun& run, const ParameterPool& pool) {
  json units = json::array(), passes = json::array();
  for (const ParameterUnit& unit : pool.units)
    units.push_back({{"stage", unit.stage},
                     {"depth", unit.depth},
                     {"buckets", unit.buckets},
                     {"begin", unit.memory.begin},
                     {"end", unit.memory.end}});
  for (const auto& [stage, orders] : pool.orders)
    passes.push_back({{"stage", stage}, {"forward", orders.forward}, {"backward", orders.backward}});
  return {
      {"size", pool.size}, {"element_bytes", element_bytes_of(run.config).value}, {"units", units}, {"passes", passes}};
}

/// The buffer of a rank of a pipeline rank; they are alike, since all slices of a parameter have one size.
json gradient_buffer_of(const ResolvedRun& run, int pp_rank) {
  const auto specs = rank_parameters(run, 0, pp_rank);
  const BufferLayout layout = rank_layout(run, specs);
  const auto name_of = [&](int parameter) { return specs[static_cast<std::size_t>(parameter)].name; };
  json slots = json::array(), buckets = json::array();
  for (const BufferLayout::Slot& slot : layout.slots)
    slots.push_back(
        {{"name", name_of(slot.parameter)}, {"begin", slot.begin}, {"end", slot.end}, {"bucket", slot.bucket}});
  for (const BufferLayout::Bucket& bucket : layout.buckets) {
    json names = json::array();
    for (const int parameter : bucket.parameters) names.push_back(name_of(parameter));
    buckets.push_back({{"begin", bucket.begin}, {"end", bucket.end}, {"stage", bucket.stage}, {"parameters", names}});
  }
  json buffer = {{"size", layout.size},
                 {"owned", owned_elements(layout, owners_of(run))},
                 {"element_bytes", element_bytes_of(run.config).gradient},
                 {"slots", slots},
                 {"buckets", buckets}};
  if (const auto pool = rank_gradient_pool(run, specs, layout))
    buffer["pool"] = {{"size", pool->size}, {"begin", pool->begin}};
  const std::vector<StageSpec> parts = parts_of_rank(run.parts, run.placement, pp_rank);
  if (const auto pool = rank_parameter_pool(run, specs, layout, parts))
    buffer["parameter_pool"] = parameter_pool_of(run, *pool);
  if (shares_state(run)) buffer["shards"] = shards_of(run, layout, name_of);
  return buffer;
}

/// Sample numbers of the first step: samples[dp rank][microbatch].
json first_step_of(const ResolvedRun& run) {
  constexpr std::int64_t kMaxListed = 1 << 16;
  const int dp = run.grid.sample_shares();
  const std::int64_t micro_batch = run.config.train.micro_batch_size, unit = micro_batch * dp;
  const std::int64_t batch = run.batch_schedule.global_batch(0);
  const std::int64_t listed = std::min(batch / unit, std::max<std::int64_t>(1, kMaxListed / unit));
  json samples = json::array();
  for (int dp_rank = 0; dp_rank < dp; ++dp_rank)
    samples.push_back(batch_plan(0, listed * unit, micro_batch, dp, dp_rank).microbatches);
  return {{"global_batch_size", batch}, {"microbatches", batch / unit}, {"samples", samples}};
}

/// Bytes by kind, one entry a rank; they depend on the rank's place in its tensor and pipeline groups alone.
json memory_of(const ResolvedRun& run, const schedule::Timeline& timeline, std::string_view processor) {
  const int tp = run.grid.size(Axis::Tp);
  std::vector<MemoryPlan> plans;
  for (int pp_rank = 0; pp_rank < run.grid.size(Axis::Pp); ++pp_rank)
    for (int tp_rank = 0; tp_rank < tp; ++tp_rank)
      plans.push_back(memory_plan(run, tp_rank, pp_rank, {timeline, pp_rank}, processor));
  json memory;
  for (int rank = 0; rank < run.grid.world_size(); ++rank) {
    const Coord coord = run.grid.coord_of(rank);
    const auto place = coord[static_cast<std::size_t>(Axis::Pp)] * tp + coord[static_cast<std::size_t>(Axis::Tp)];
    const MemoryPlan& plan = plans[static_cast<std::size_t>(place)];
    memory["parameters"].push_back(plan.parameters);
    memory["gradients"].push_back(plan.gradients);
    memory["optimizer_state"].push_back(plan.optimizer_state);
    memory["packed_weights"].push_back(plan.packed_weights);
    memory["activations"].push_back(plan.activations);
    memory["logits"].push_back(plan.logits);
    if (run.teacher) memory["teacher"].push_back(plan.teacher);
    memory["total"].push_back(plan.total());
  }
  return memory;
}

/// Bytes that a layer keeps of one microbatch, with those that a layer as the papers have it would keep: 16-bit
/// elements, four hidden widths in the MLP, a key for each head, no experts, latents nor gates. null for others.
json layer_activations_of(const ResolvedRun& run) {
  const config::RunConfig& config = run.config;
  const ModelShape& shape = run.shape;
  if (element_bytes(config) != 2 || shape.gated || shape.encoder_decoder() || shape.ffn_hidden != 4 * shape.hidden ||
      shape.experts || shape.latents || shape.groups() != shape.num_heads || shape.query_rows() != shape.hidden ||
      shape.attention.attention_output_gate || config.train.recompute == "full" || config.parallel.cp > 1)
    return nullptr;
  const bool selective = config.train.recompute == "selective";
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  return {{"bytes", layer_activation_bytes(config, shape.layer(0))},
          {"paper_bytes",
           paper_activation_bytes(number(config.data.seq_length), number(config.train.micro_batch_size),
                                  number(shape.hidden), number(shape.num_heads), config.parallel.tp, config.parallel.sp,
                                  selective ? Recomputation::Selective : Recomputation::None)}};
}

/// Every stage: its layers, its pipeline rank, the world's ranks that hold it, and its elements over all tp ranks.
json stages_of(const ResolvedRun& run) {
  json stages = json::array();
  for (const StageSpec& part : run.parts) {
    const int pp_rank = run.placement.rank_of(part.stage);
    std::int64_t parameters = 0;
    for (const ParameterSpec& spec : model_parameters(run.shape, 1, 0, {part})) parameters += spec.size();
    json ranks = json::array();
    for (int rank = 0; rank < run.grid.world_size(); ++rank)
      if (run.grid.coord_of(rank)[static_cast<std::size_t>(Axis::Pp)] == pp_rank) ranks.push_back(rank);
    stages.push_back({{"first_layer", part.first_layer},
                      {"num_layers", part.num_layers},
                      {"embedding", part.embedding},
                      {"output", part.output},
                      {"pipeline_rank", pp_rank},
                      {"ranks", ranks},
                      {"parameters", parameters}});
  }
  return stages;
}

/// How many of a rank's forwards, of all its stages, recompute only in part.
json partial_forwards_of(const schedule::Program& program) {
  json counts = json::array();
  for (const std::vector<schedule::Op>& ops : program.ranks)
    counts.push_back(std::count_if(ops.begin(), ops.end(), [](const schedule::Op& op) {
      return op.kind == schedule::Kind::Forward && op.partial;
    }));
  return counts;
}

/// The step's program with forward, backward of inputs and of weights taking one unit each, as the papers draw it; and
/// its bubble and bytes of activations by rank where they take as long as their arithmetic.
json schedule_of(const ResolvedRun& run, const schedule::Program& program, const schedule::Timeline& by_arithmetic) {
  const schedule::Timeline even = schedule::simulate(program);
  json result = {{"name", schedule_text(run)},
                 {"makespan", even.makespan},
                 {"bubble", even.bubble},
                 {"idle", even.idle},
                 {"peak_activations", even.peak_live},
                 {"peak_bytes", by_arithmetic.peak_bytes},
                 {"bubble_by_arithmetic", by_arithmetic.bubble}};
  if (run.config.train.recompute_partial_microbatches > 0) result["partial_forwards"] = partial_forwards_of(program);
  return result;
}

/// Which layers compute in 8 bits, and what scaling them takes of each rank's optimizer_state.
json fp8_of(const ResolvedRun& run, const Fp8Recipe& recipe) {
  const auto layers = static_cast<std::int64_t>(fp8_layers(run.shape).size());
  return {{"format", run.config.fp8.format},
          {"recipe", run.config.fp8.recipe},
          {"linear_layers", layers},
          {"history", recipe.history},
          {"state_bytes", fp8_state_bytes(recipe, layers, run.config.parallel.device == "cuda")}};
}

}  // namespace

json report(const ResolvedRun& run, std::string_view processor) {
  const config::RunConfig& config = run.config;
  const std::int64_t batch = config.train.global_batch_size;
  const schedule::Program program = pipeline_program(run, run.microbatches_per_step);
  const schedule::Timeline timeline = schedule::simulate(program, stage_costs(config, run.shape, run.parts));
  json gradient_buffers = json::array();
  for (int pp_rank = 0; pp_rank < run.grid.size(Axis::Pp); ++pp_rank)
    gradient_buffers.push_back(gradient_buffer_of(run, pp_rank));
  json all = {
      {"world_size", run.grid.world_size()},
      {"target", {{"device", config.parallel.device}, {"processor", processor}}},
      {"layout",
       {{"tp", run.grid.size(Axis::Tp)},
        {"cp", run.grid.size(Axis::Cp)},
        {"dp", run.grid.sample_shares()},
        {"pp", run.grid.size(Axis::Pp)}}},
      {"groups", groups_of(run)},
      {"stages", stages_of(run)},
      {"schedule", schedule_of(run, program, timeline)},
      {"parameter_slices", parameters_of(run)},
      {"gradient_buffers", gradient_buffers},
      {"warnings", sharding_warnings(run)},
      {"first_step", first_step_of(run)},
      {"memory_bytes", memory_of(run, timeline, processor)},
      {"layer_activations", layer_activations_of(run)},
      {"flops_per_step", training_flops(run.shape, batch, config.data.seq_length, config.data.decoder_seq_length)},
      {"parameters", parameter_count(run.shape)},
      {"padded_vocab", run.shape.padded_vocab},
      {"global_batch_size", batch},
      {"microbatches_per_step", run.microbatches_per_step},
      {"train_samples", run.train_samples},
      {"train_tokens", run.train_samples * config.data.seq_length}};
  if (!config.train.recompute_layers.empty()) all["recomputed_layers"] = config.train.recompute_layers;
  if (run.grid.sequence_shares() > 1) all["sequence"] = sequence_of(run);
  if (const auto fp8 = fp8_recipe(config.fp8)) all["fp8"] = fp8_of(run, *fp8);
  if (config.checkpoint.memory_interval > 0)
    all["checkpoints_in_memory"] = {{"checkpoint_bytes", checkpoint_bytes(run)},
                                    {"one_node", checkpoints_in_memory(config.checkpoint, false)},
                                    {"several_nodes", checkpoints_in_memory(config.checkpoint, true)}};
  for (const BatchStep& step : run.batch_schedule.steps())
    all["batch_steps"].push_back({{"from_sample", step.from}, {"global_batch_size", step.size}});
  return all;
}

}  // namespace megatron::plan
