#include "megatron/plan/cost/rank_buffers.h"

#include <algorithm>
#include <numeric>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/cost/recomputation.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/plan/parameters/shards.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/plan/ranks/rank_roles.h"

namespace megatron::plan {
namespace {

/// Whether some rank puts weight gradients off.
bool splits_backward(const ResolvedRun& run) {
  if (!run.schedule_file) return schedule::schedule_named(run.schedule_name).splits_backward;
  const auto& ranks = run.schedule_file->ranks;
  return std::any_of(ranks.begin(), ranks.end(), [](const std::vector<schedule::Op>& ops) {
    return std::any_of(ops.begin(), ops.end(),
                       [](const schedule::Op& op) { return op.kind == schedule::Kind::BackwardInput; });
  });
}

/// Whether a rank that has computed the output layer's gradient in a forward pass continues with that microbatch's
/// backward pass, in every step of the run: then the gradient's bucket is there as long as one of the layers'. Where
/// that takes long to find out, it is not taken for granted.
bool backward_follows_output(const ResolvedRun& run) {
  constexpr std::int64_t kMaxMicrobatches = 1 << 20;  // of all sizes of steps together
  if (run.placement.num_stages() == 1) return true;
  if (run.schedule_file) return false;
  const schedule::ScheduleInfo& info = schedule::schedule_named(run.schedule_name);
  const int last = run.placement.num_stages() - 1;
  const std::int64_t unit = run.config.train.micro_batch_size * run.grid.sample_shares();
  std::int64_t total = 0;
  for (std::int64_t k = 0; k < run.batch_schedule.num_sizes(); ++k) {
    const std::int64_t microbatches = run.batch_schedule.size(k) / unit;
    total += microbatches;
    if (total > kMaxMicrobatches) return false;
    const auto ops = info.generator(pipeline_shape(run, microbatches), run.placement.rank_of(last));
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (ops[i].kind == schedule::Kind::Forward && ops[i].stage == last &&
          ops[i + 1] != schedule::Op{schedule::Kind::Backward, last, ops[i].microbatch})
        return false;
  }
  return true;
}

/// Whether ranks share parameters (ZeRO stage 3).
bool shares_parameters(const ResolvedRun& run) {
  return shares_state(run) && run.config.optimizer.data_parallel_sharding_strategy == "optim_grads_params";
}

/// Whether ranks share gradients (ZeRO stage 2 and 3).
bool shares_gradients(const ResolvedRun& run) {
  return shares_parameters(run) ||
         (shares_state(run) && run.config.optimizer.data_parallel_sharding_strategy == "optim_grads");
}

/// A bucket for each layer, for what comes before the layers of a stage and for what follows them; or several, of
/// bucket_size elements or more.
BufferLayout layer_buckets(const std::vector<ParameterSpec>& specs, std::int64_t bucket_size,
                           const BufferPadding& padding) {
  std::vector<ParameterSpec> parts = specs;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const bool begins = i > 0 && (specs[i].stage != specs[i - 1].stage || specs[i].depth != specs[i - 1].depth);
    parts[i].stage = i == 0 ? 0 : parts[i - 1].stage + (begins ? 1 : 0);
  }
  BufferLayout layout = buffer_layout(parts, bucket_size, padding);
  for (BufferLayout::Bucket& bucket : layout.buckets)
    bucket.stage = specs[static_cast<std::size_t>(bucket.parameters.front())].stage;
  return layout;
}

/// The pool, whether it saves something or not.
GradientPool pool_of(const ResolvedRun& run, std::vector<ParameterSpec> specs, const BufferLayout& layout) {
  if (backward_follows_output(run))
    for (ParameterSpec& spec : specs) spec.in_forward = spec.in_forward && spec.depth == 0;
  return gradient_pool(layout, specs,
                       {.split_backward = splits_backward(run), .overlap = run.config.optimizer.overlap_grad_reduce});
}

/// Elements of gradients, or parameters, that a rank holds: those in turn, and its own.
std::int64_t held_elements(const ResolvedRun& run, std::int64_t pool, const BufferLayout& layout) {
  return pool + owned_elements(layout, owners_of(run));
}

/// The pool of parameters, whether it saves something or not.
ParameterPool parameter_pool_of(const ResolvedRun& run, const std::vector<ParameterSpec>& specs,
                                const BufferLayout& layout, const std::vector<StageSpec>& parts) {
  const LayerRecomputation again = layer_recomputation(run.config.train, run.shape.num_layers);
  const auto groups = [&](const StageSpec& part, bool partial) {
    return layer_groups(again, part, run.shape.encoder_layers, partial);
  };
  std::vector<StageReads> stages;
  for (const StageSpec& part : parts)
    stages.push_back(
        {part.stage, part.first_layer, part.num_layers, part.output, groups(part, false), groups(part, true)});
  return parameter_pool(layout, specs, owners_of(run), stages);
}

/// "warning: pipeline rank 0: gradients that take turns need 2 MB, whole ones 1 MB", and what follows from it.
std::string no_saving(const ResolvedRun& run, int pp_rank, const char* what, std::int64_t held, std::int64_t whole,
                      std::int64_t element) {
  const auto bytes = [&](std::int64_t elements) { return human_bytes(static_cast<double>(elements * element)); };
  const std::string both = concat("warning: pipeline rank ", pp_rank, ": ", what, " that take turns need ", bytes(held),
                                  ", whole ones ", bytes(whole));
  return run.config.optimizer.bucket_size == 0 ? concat(both, "; they are held whole, as with optim")
                                               : concat(both, "; leave optimizer.bucket_size out, or take optim");
}

}  // namespace

std::vector<ParameterSpec> rank_parameters(const ResolvedRun& run, int tp_rank, int pp_rank) {
  const auto [ep, etp] = expert_layout(run.config.parallel);
  return trained_parameters(run.shape, run.grid.size(Axis::Tp), tp_rank,
                            parts_of_rank(run.parts, run.placement, pp_rank),
                            {.ep = ep, .etp = etp, .etp_rank = tp_rank % etp});
}

BufferLayout rank_layout(const ResolvedRun& run, const std::vector<ParameterSpec>& specs) {
  const config::OptimizerConfig& optimizer = run.config.optimizer;
  const RankRoles roles = roles_of(run);
  const int ranks = roles.gradients(0).size();
  BufferPadding padding;
  if (optimizer.use_distributed_optimizer)  // those of experts mostly divide the others
    padding = sharded_padding(std::lcm(ranks, roles.gradients(0, Weights::Experts).size()));
  padding.experts_apart = roles.experts_apart();
  if (!optimizer.use_distributed_optimizer) return buffer_layout(specs, bucket_elements(optimizer, ranks), padding);
  for (SharedCopies& shared : shared_copies(run.shape, run.parts, run.placement))
    padding.alone.push_back(std::move(shared.name));
  if (!shares_gradients(run)) return buffer_layout(specs, bucket_elements(optimizer, ranks), padding);
  return optimizer.bucket_size > 0 && !shares_parameters(run) ? buffer_layout(specs, optimizer.bucket_size, padding)
                                                              : layer_buckets(specs, optimizer.bucket_size, padding);
}

bool same_sizes(const ResolvedRun& run, int a, int b) {
  if (a == b) return true;
  if (run.shape.encoder_decoder() || !run.shape.layers.empty()) return false;
  const std::int64_t period = run.shape.experts ? run.shape.moe_layer_freq : 1;
  const std::int64_t dense = run.shape.experts ? run.shape.dense_layers : 0;
  return std::ranges::equal(parts_of_rank(run.parts, run.placement, a), parts_of_rank(run.parts, run.placement, b),
                            [&](const StageSpec& x, const StageSpec& y) {
                              const bool mixed = std::min(x.first_layer, y.first_layer) < dense;
                              return x.num_layers == y.num_layers && x.embedding == y.embedding &&
                                     x.output == y.output && (x.first_layer - y.first_layer) % period == 0 &&
                                     (!mixed || x.first_layer == y.first_layer);
                            });
}

ExpertLayout expert_layout(const config::ParallelConfig& parallel) {
  return {.ep = parallel.ep, .etp = parallel.etp > 0 ? parallel.etp : parallel.tp};
}

RankRoles roles_of(const ResolvedRun& run) { return RankRoles(run.grid, expert_layout(run.config.parallel)); }

ExpertShare expert_share(const ResolvedRun& run, int rank) {
  const RankRoles roles = roles_of(run);
  const Peers experts = roles.experts(rank), slices = roles.tensor(rank, Weights::Experts);
  return {.ep = experts.size(), .rank = experts.index, .etp = slices.size(), .etp_rank = slices.index};
}

Owners owners_of(const ResolvedRun& run, int rank) {
  const RankRoles roles = roles_of(run);
  const auto owner = [&](Weights weights) -> Owner {
    const Peers peers = roles.state(rank, run.config.optimizer.use_distributed_optimizer, weights);
    return {peers.size(), peers.index};
  };
  return {owner(Weights::Dense), owner(Weights::Experts)};
}

bool shares_state(const ResolvedRun& run) {
  const Owners owners = owners_of(run);
  return owners.dense.ranks > 1 || owners.experts.ranks > 1;
}

std::optional<GradientPool> rank_gradient_pool(const ResolvedRun& run, const std::vector<ParameterSpec>& specs,
                                               const BufferLayout& layout) {
  if (!shares_gradients(run)) return std::nullopt;
  GradientPool pool = pool_of(run, specs, layout);
  if (run.config.optimizer.bucket_size == 0 && held_elements(run, pool.size, layout) >= layout.size)
    return std::nullopt;
  return pool;
}

std::optional<ParameterPool> rank_parameter_pool(const ResolvedRun& run, const std::vector<ParameterSpec>& specs,
                                                 const BufferLayout& layout, const std::vector<StageSpec>& parts) {
  if (!shares_parameters(run)) return std::nullopt;
  ParameterPool pool = parameter_pool_of(run, specs, layout, parts);
  if (run.config.optimizer.bucket_size == 0 && held_elements(run, pool.size, layout) >= layout.size)
    return std::nullopt;
  return pool;
}

std::optional<FrozenWeights> frozen_weights(const ResolvedRun& run, int tp_rank, const std::vector<StageSpec>& parts,
                                            const ExpertShare& experts) {
  if (!run.shape.lora) return std::nullopt;
  FrozenWeights frozen{model_parameters(run.shape, run.grid.size(Axis::Tp), tp_rank, parts, experts), {}, {}};
  frozen.layout = rank_layout(run, frozen.specs);
  frozen.pool = rank_parameter_pool(run, frozen.specs, frozen.layout, parts);
  if (!frozen.pool) frozen.layout = buffer_layout(frozen.specs, 0);
  return frozen;
}

std::vector<std::string> sharding_warnings(const ResolvedRun& run) {
  std::vector<std::string> lines;
  if (!shares_gradients(run)) return lines;
  const ElementBytes element = element_bytes_of(run.config);
  for (int pp_rank = 0; pp_rank < run.placement.num_ranks(); ++pp_rank) {
    const auto specs = rank_parameters(run, 0, pp_rank);
    const BufferLayout layout = rank_layout(run, specs);
    const auto warn = [&](const char* what, const BufferLayout& of, std::int64_t pool, std::int64_t bytes) {
      const std::int64_t held = held_elements(run, pool, of);
      if (held >= of.size) lines.push_back(no_saving(run, pp_rank, what, held, of.size, bytes));
    };
    warn("gradients", layout, pool_of(run, specs, layout).size, element.gradient);
    if (!shares_parameters(run)) continue;
    const std::vector<StageSpec> parts = parts_of_rank(run.parts, run.placement, pp_rank);
    if (!run.shape.lora) {
      warn("parameters", layout, parameter_pool_of(run, specs, layout, parts).size, element.value);
      continue;
    }
    // Of adapters, which are few, either is fine.
    const auto [ep, etp] = expert_layout(run.config.parallel);
    const auto weights = model_parameters(run.shape, run.grid.size(Axis::Tp), 0, parts, {.ep = ep, .etp = etp});
    const BufferLayout of_weights = rank_layout(run, weights);
    warn("frozen weights", of_weights, parameter_pool_of(run, weights, of_weights, parts).size, element.value);
  }
  return lines;
}

ElementBytes element_bytes_of(const config::RunConfig& config) {
  const config::OptimizerConfig& optimizer = config.optimizer;
  ElementBytes bytes;
  bytes.value = element_bytes(config);
  const bool half = bytes.value == 2;
  const std::int64_t precise = half ? 4 : bytes.value;
  bytes.gradient = half && optimizer.grad_dtype == "fp32" ? 4 : bytes.value;
  const auto bytes_of = [&](bool matrix) {
    const auto names = config::optimizer_info(optimizer.name).state(optimizer, matrix);
    return std::ssize(names) * (optimizer.state_dtype == "bf16" ? 2 : precise);
  };
  bytes.master = half ? precise : 0;
  bytes.matrix_state = bytes_of(true);
  bytes.state = bytes_of(false);
  return bytes;
}

std::int64_t optimizer_bytes(const ResolvedRun& run, const std::vector<ParameterSpec>& specs,
                             const BufferLayout& layout) {
  const ElementBytes element = element_bytes_of(run.config);
  const Owners owners = owners_of(run);
  const std::int64_t owned = owned_elements(layout, owners);
  if (element.matrix_state == element.state) return owned * (element.master + element.state);
  std::int64_t most = 0;
  // A stage's ranks in their order: so many follow one another that own the same of dense weights, and of experts'.
  const int of_dense = run.grid.size(Axis::Tp), stage = owners.dense.ranks * of_dense,
            of_experts = stage / owners.experts.ranks;
  for (int rank = 0; rank < stage; rank += std::gcd(of_dense, of_experts)) {
    std::int64_t state = 0;
    const Owner dense{owners.dense.ranks, rank / of_dense}, experts{owners.experts.ranks, rank / of_experts};
    for (const Shard& shard : shards(layout, {dense, experts}))
      for (const ParameterRange& range : shard.parameters)
        state +=
            range.param.size() *
            (specs[static_cast<std::size_t>(range.parameter)].is_layer_matrix() ? element.matrix_state : element.state);
    most = std::max(most, state);
  }
  return owned * element.master + most;
}

}  // namespace megatron::plan
