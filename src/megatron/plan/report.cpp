#include "megatron/plan/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/plan/batch_plan.h"
#include "megatron/plan/buffer_layout.h"
#include "megatron/plan/counts.h"

namespace megatron::plan {
namespace {

using nlohmann::json;

json groups_of(const ResolvedRun& run) {
  const RankGrid& grid = run.grid;
  return {{"tensor", grid.groups({Axis::Tp})},
          {"pipeline", grid.groups({Axis::Pp})},
          {"data", grid.groups({Axis::Dp})},
          {"model", grid.groups({Axis::Tp, Axis::Pp})},
          {"embedding", grid.embedding_groups(run.placement)},
          {"position_embedding", grid.position_embedding_groups(run.placement)}};
}

/// Every parameter in forward order. `slices`: by tensor-parallel rank, along `split_dim`; null where each rank holds
/// the whole.
json parameters_of(const ResolvedRun& run) {
  const int tp = run.grid.size(Axis::Tp);
  json all = json::array();
  for (int tp_rank = 0; tp_rank < tp; ++tp_rank) {
    const std::vector<ParameterSpec> specs = gpt_parameters(run.shape, tp, tp_rank);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const ParameterSpec& spec = specs[i];
      if (tp_rank == 0)
        all.push_back({{"name", spec.name},
                       {"shape", spec.shape},
                       {"split_dim", spec.replicated() ? json() : json(spec.split_dim)},
                       {"slices", spec.replicated() ? json() : json::array()},
                       {"weight_decay", spec.weight_decay}});
      if (!spec.replicated()) all[i]["slices"].push_back({spec.offset, spec.offset + spec.length});
    }
  }
  return all;
}

/// The buffer of one rank; all ranks' are alike, since all slices of a parameter have one size.
json gradient_buffer_of(const ResolvedRun& run) {
  const auto specs = gpt_parameters(run.shape, run.grid.size(Axis::Tp), 0);
  const BufferLayout layout = buffer_layout(specs, bucket_elements(run.config.optimizer, run.grid.size(Axis::Dp)));
  const auto name_of = [&](int parameter) { return specs[static_cast<std::size_t>(parameter)].name; };
  json slots = json::array(), buckets = json::array();
  for (const BufferLayout::Slot& slot : layout.slots)
    slots.push_back(
        {{"name", name_of(slot.parameter)}, {"begin", slot.begin}, {"end", slot.end}, {"bucket", slot.bucket}});
  for (const BufferLayout::Bucket& bucket : layout.buckets) {
    json names = json::array();
    for (const int parameter : bucket.parameters) names.push_back(name_of(parameter));
    buckets.push_back({{"begin", bucket.begin}, {"end", bucket.end}, {"parameters", names}});
  }
  return {{"size", layout.size}, {"element_bytes", element_bytes(run.config)}, {"slots", slots}, {"buckets", buckets}};
}

/// Sample numbers of the first step: samples[dp rank][microbatch].
json first_step_of(const ResolvedRun& run) {
  constexpr std::int64_t kMostListed = 1 << 16;
  const int dp = run.grid.size(Axis::Dp);
  const std::int64_t micro_batch = run.config.train.micro_batch_size, unit = micro_batch * dp;
  const std::int64_t batch = run.batch_schedule.global_batch(0);
  const std::int64_t listed = std::min(batch / unit, std::max<std::int64_t>(1, kMostListed / unit));
  json samples = json::array();
  for (int dp_rank = 0; dp_rank < dp; ++dp_rank)
    samples.push_back(batch_plan(0, listed * unit, micro_batch, dp, dp_rank).microbatches);
  return {{"global_batch_size", batch}, {"microbatches", batch / unit}, {"samples", samples}};
}

/// Bytes by kind, one entry a rank; they depend on the rank's place in its tensor-parallel group alone.
json memory_of(const ResolvedRun& run) {
  std::vector<MemoryPlan> by_tp_rank;
  for (int tp_rank = 0; tp_rank < run.grid.size(Axis::Tp); ++tp_rank)
    by_tp_rank.push_back(memory_plan(run.config, run.shape, tp_rank));
  json memory;
  for (int rank = 0; rank < run.grid.world_size(); ++rank) {
    const auto tp_rank = static_cast<std::size_t>(run.grid.coord_of(rank)[static_cast<std::size_t>(Axis::Tp)]);
    const MemoryPlan& plan = by_tp_rank[tp_rank];
    memory["parameters"].push_back(plan.parameters);
    memory["gradients"].push_back(plan.gradients);
    memory["optimizer_state"].push_back(plan.optimizer_state);
    memory["activations"].push_back(plan.activations);
    memory["logits"].push_back(plan.logits);
    memory["total"].push_back(plan.total());
  }
  return memory;
}

}  // namespace

json report(const ResolvedRun& run) {
  const config::RunConfig& config = run.config;
  const std::int64_t batch = config.train.global_batch_size;
  json stages = json::array();
  // Without a pipeline one stage has all layers and runs its microbatches one after the other; backward takes the time
  // of two forwards, the unit of the schedule.
  stages.push_back({{"first_layer", 0}, {"num_layers", run.shape.num_layers}});
  return {{"world_size", run.grid.world_size()},
          {"layout",
           {{"tp", run.grid.size(Axis::Tp)},
            {"cp", run.grid.size(Axis::Cp)},
            {"dp", run.grid.size(Axis::Dp)},
            {"pp", run.grid.size(Axis::Pp)}}},
          {"groups", groups_of(run)},
          {"stages", stages},
          {"schedule",
           {{"makespan", 3 * run.microbatches_per_step}, {"bubble", 0.0}, {"peak_activations", json::array({1})}}},
          {"parameter_slices", parameters_of(run)},
          {"gradient_buffer", gradient_buffer_of(run)},
          {"first_step", first_step_of(run)},
          {"memory_bytes", memory_of(run)},
          {"flops_per_step", training_flops(run.shape, batch, config.data.seq_length)},
          {"parameters", parameter_count(run.shape)},
          {"padded_vocab", run.shape.padded_vocab},
          {"global_batch_size", batch},
          {"microbatches_per_step", run.microbatches_per_step},
          {"train_samples", run.train_samples},
          {"train_tokens", run.train_samples * config.data.seq_length}};
}

}  // namespace megatron::plan
