#include "megatron/plan/layout_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/base/machine/parallel.h"
#include "megatron/plan/cost/layer_kinds.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/cost/recomputation.h"
#include "megatron/plan/cost/sequence_exchange.h"
#include "megatron/schedule/table.h"

namespace megatron::plan {
namespace {

constexpr std::int64_t kMostMicroBatch = 64;
constexpr int kMostTp = 64, kMostVpp = 12;

double as_double(std::int64_t value) { return static_cast<double>(value); }

/// Bytes of weights that the same ranks hold, on a tensor-parallel rank that has all layers, and what becomes of them.
struct WeightBytes {
  double elements = 0, parameters = 0, gradients = 0, state = 0;

  void add(const ParameterSpec& spec, const ElementBytes& bytes) {
    const double count = as_double(spec.local_size());
    elements += count;
    parameters += count * as_double(bytes.value);
    gradients += count * as_double(bytes.gradient);
    state += count * as_double(bytes.master + (spec.is_layer_matrix() ? bytes.matrix_state : bytes.state));
  }
};

/// By (tp, ep, etp), the same for every pipeline.
struct WholeWeights {
  WeightBytes dense, experts;
  double frozen_bytes = 0;
};

/// What one microbatch takes on one tensor-parallel rank that has all layers, and what it holds, by (tp, cp, ep, etp,
/// micro batch, recomputation) and way of context parallelism: the same for every pipeline.
struct WholePasses {
  std::string way = {};
  double forward_s = 0, backward_s = 0;
  double layers_s = 0;  ///< of these the products of layers, where all cost the same; else 0
  std::int64_t activation_bytes = 0, gathered_bytes = 0;

  /// Whether a layout is no better with `other` in place of this.
  bool beats(const WholePasses& other) const {
    return forward_s <= other.forward_s && backward_s <= other.backward_s && gathered_bytes <= other.gathered_bytes;
  }
};

/// Stages balanced by cost, by (tp, cp, micro batch, recomputation).
struct BalancedStages {
  config::RunConfig config = {};
  ModelShape shape = {};
  std::map<int, std::vector<std::int64_t>> layers = {};  ///< of each, by the number of stages
};

/// How layers are split.
struct Split {
  const char* stages = "";   ///< LayoutChoice::stages
  double first_share = 1;    ///< of the layers, that the first rank has
  double largest_share = 1;  ///< that the rank with the most has
};

/// A layout before it is planned: how fast it can be at most, and what it holds at least.
struct Candidate {
  LayoutChoice choice;
  double least_step_s = 0;
};

std::vector<std::int64_t> divisors(std::int64_t n, std::int64_t most) {
  std::vector<std::int64_t> found;
  for (std::int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) found.push_back(d);
  return found;
}

/// Ranks that share the optimizer's state of dense weights, and of experts.
struct StateOwners {
  double dense = 1, experts = 1;
};
StateOwners owners_of(const LayoutChoice& choice, int ranks) {
  if (choice.sharding.empty()) return {};
  const double slices = choice.etp > 0 ? static_cast<double>(choice.tp) / choice.etp : 1;
  return {static_cast<double>(ranks), ranks * slices / choice.ep};
}

/// Of a rank of `choice`, without what its schedule and other ranks make it wait for.
double least_step_s(const WholePasses& whole, double update_s, const LayoutChoice& choice, std::int64_t microbatches,
                    double largest_share) {
  const double pp = choice.pp, m = as_double(microbatches);
  const bool splits_backward = choice.pp > 1 && schedule::schedule_named(choice.schedule).splits_backward;
  const double bubble = splits_backward ? 0 : (pp - 1) / (m * choice.vpp);
  const double computed =
      std::max((whole.forward_s + whole.backward_s) / pp * (1 + bubble), whole.layers_s * largest_share);
  return m * computed + update_s / pp;
}

/// Weights, gradients and the optimizer's state, of which some rank has at least its even share.
double least_state_bytes(const WholeWeights& whole, const LayoutChoice& choice, int ranks) {
  const StateOwners owners = owners_of(choice, ranks);
  const bool gradients = choice.sharding.starts_with("optim_grads"),
             parameters = choice.sharding == "optim_grads_params";
  const auto held = [&](const WeightBytes& bytes, double sharing) {
    return bytes.parameters / (parameters ? sharing : 1) + bytes.gradients / (gradients ? sharing : 1) +
           bytes.state / sharing;
  };
  return (whole.frozen_bytes / (parameters ? owners.dense : 1) + held(whole.dense, owners.dense) +
          held(whole.experts, owners.experts)) /
         choice.pp;
}

/// What the first rank of a pipeline keeps before the first backward pass comes back to it: as many microbatches as
/// there are ranks, of `first_share` of the model; and what a layer gathers.
double least_pass_bytes(const WholePasses& whole, const LayoutChoice& choice, std::int64_t microbatches,
                        double first_share) {
  const double kept = as_double(whole.activation_bytes * std::min<std::int64_t>(microbatches, choice.pp));
  // A share of more than the mean would count a recomputed layer's working set more than once.
  return kept * std::min(first_share, 1.0 / choice.pp) + as_double(whole.gathered_bytes);
}

std::vector<std::string> schedules_of(int pp, int vpp) {
  if (pp == 1) return {""};
  std::vector<std::string> names;
  for (const schedule::ScheduleInfo& each : schedule::schedules())
    if (each.takes(vpp) && (each.is_default || each.splits_backward)) names.emplace_back(each.name);
  return names;
}

class Search {
 public:
  Search(const config::RunConfig& recipe, const Hardware& hardware, double capacity_bytes, const Facts& facts)
      : recipe_(recipe),
        hardware_(hardware),
        capacity_(capacity_bytes),
        facts_(facts),
        follows_microbatch_(recipe.fp8.format != "none" && recipe.fp8.recipe == "tensorwise"),
        world_(std::max(1, recipe.parallel.world_size)) {
    config::RunConfig alone = with_layout(recipe, {});
    alone.parallel.world_size = 1;
    alone.train.micro_batch_size = alone.train.global_batch_size = 1;
    alone.train.memory_limit_gb = 0;                // of ranks that share the model
    alone.schedule = {};                            // of so few samples
    const ResolvedRun run = resolve(alone, facts);  // what is wrong with the recipe itself is said here
    model_ = run.config.model;
    num_layers_ = run.shape.num_layers;
    groups_ = run.shape.groups();
    widths_ = {model_.num_attention_heads, run.shape.ffn_hidden};
    if (run.shape.experts) {
      widths_.push_back(run.shape.experts->shared_width);
      expert_width_ = run.shape.experts->expert.width;
    }
    batch_ = recipe.train.global_batch_size;
    for (const std::int64_t cp : divisors(world_, run.config.data.seq_length / kLeastSharedTokens)) {
      alone.parallel.cp = alone.parallel.world_size = static_cast<int>(cp);
      if (cp == 1 || resolve_if_allowed(alone, facts)) sharing_.push_back(static_cast<int>(cp));
    }
    if (sharing_.empty()) sharing_ = {1};
    if (batch_ < 1)
      throw ConfigError(
          rule_got_fix("A search needs train.global_batch_size.", concat(batch_), "--global-batch-size 1536"));
  }

  /// All that divide what they must, the fastest by their bound first.
  std::vector<Candidate> candidates() {
    std::vector<Candidate> all;
    for (const std::int64_t tp : divisors(world_, std::min<std::int64_t>(kMostTp, hardware_.ranks_per_node))) {
      if (std::ranges::any_of(widths_, [&](std::int64_t width) { return width % tp != 0; })) continue;
      for (const int cp : sharing_) {
        if (world_ / tp % cp != 0) continue;
        const std::int64_t left = world_ / tp / cp;
        for (const std::int64_t pp : divisors(left, num_layers_)) {
          const std::int64_t dp = left / pp;
          if (batch_ % dp != 0) continue;
          add_with_experts(all, {.tp = static_cast<int>(tp), .pp = static_cast<int>(pp), .cp = cp}, dp);
        }
      }
    }
    std::ranges::stable_sort(all, {}, &Candidate::least_step_s);
    return all;
  }

  std::int64_t allowed() const { return allowed_; }

  /// Nothing where a rule that was not foreseen is against it.
  std::optional<FoundLayout> evaluate(const LayoutChoice& choice) const {
    const std::optional<ResolvedRun> allowed = resolve_if_allowed(with_layout(recipe_, choice), facts_);
    if (!allowed) return std::nullopt;
    const ResolvedRun& run = *allowed;
    FoundLayout found{.choice = choice,
                      .dp = run.grid.sample_shares(),
                      .microbatches = run.microbatches_per_step,
                      .memory = largest_memory(run, hardware_.processor),
                      .gathered_bytes = gathered_bytes(run.config, run.shape),
                      .cost = {}};
    found.cost = step_cost(run, hardware_);
    for (const StageSpec& part : run.parts) {
      found.stage_layers.push_back(part.num_layers);
      found.recomputed += std::ranges::count(layers_again(run.config.train, run.shape, part, false), true);
    }
    found.tokens_per_s = as_double(batch_ * run.config.data.seq_length) / found.cost.step_s;
    return found;
  }

  /// The layout with as few layers recomputed as fit; nothing where that is none or all of them.
  std::optional<FoundLayout> with_fewest_layers(const FoundLayout& layout) const {
    LayoutChoice choice = layout.choice;
    choice.recompute = kFitLayers;
    choice.limit_gb = std::floor((capacity_ - as_double(layout.gathered_bytes)) / 1e6) / 1e3;
    if (const double limit = recipe_.train.memory_limit_gb; limit > 0)
      choice.limit_gb = std::min(choice.limit_gb, limit);
    auto found = evaluate(choice);
    if (found && (found->recomputed == 0 || found->recomputed == num_layers_)) return std::nullopt;
    return found;
  }

  bool fits(const FoundLayout& found) const { return as_double(found.held_bytes()) <= capacity_; }

 private:
  /// Those with experts split as other weights are and, where these are split, with whole ones.
  void add_with_experts(std::vector<Candidate>& all, LayoutChoice sizes, std::int64_t dp) {
    const std::int64_t experts = std::max<std::int64_t>(1, model_.num_experts), ranks = dp * sizes.cp;
    for (const int etp : {0, 1}) {
      if (etp == 0 ? expert_width_ % sizes.tp != 0 : sizes.tp == 1 || model_.num_experts == 0) continue;
      sizes.etp = etp;
      for (const std::int64_t ep : divisors(std::gcd(experts, etp == 0 ? ranks : ranks * sizes.tp), world_)) {
        sizes.ep = static_cast<int>(ep);
        add(all, sizes, dp);
      }
    }
  }

  /// How many of a rank's `samples` may be a microbatch.
  std::vector<std::int64_t> microbatches_of(std::int64_t samples) const {
    const std::int64_t own = recipe_.train.micro_batch_size;
    if (!follows_microbatch_) return divisors(samples, kMostMicroBatch);
    return own > 0 && samples % own == 0 ? std::vector{own} : std::vector<std::int64_t>{};
  }

  /// Those with the sizes of `sizes` and so many samples at once.
  void add(std::vector<Candidate>& all, const LayoutChoice& sizes, std::int64_t dp) {
    const WholeWeights* const weights = whole_weights(sizes);
    if (weights == nullptr) return;
    const std::int64_t most_vpp = sizes.pp == 1 ? 1 : std::min<std::int64_t>(num_layers_ / sizes.pp, kMostVpp);
    for (std::int64_t vpp = 1; vpp <= most_vpp; ++vpp)
      for (const std::int64_t micro : microbatches_of(batch_ / dp)) {
        // Another has as many tokens on each rank, and shares them less.
        if (!follows_microbatch_ && std::gcd(micro, sizes.cp) > 1) continue;
        LayoutChoice choice = sizes;
        choice.vpp = static_cast<int>(vpp);
        choice.micro_batch_size = micro;
        add(all, choice, *weights, static_cast<int>(dp * sizes.cp), batch_ / dp / micro);
      }
  }

  /// With each schedule, recomputation, sharding over `ranks`, way of sharing sequences, and split into stages.
  void add(std::vector<Candidate>& all, LayoutChoice choice, const WholeWeights& weights, int ranks,
           std::int64_t microbatches) {
    for (const std::string& schedule : schedules_of(choice.pp, choice.vpp)) {
      choice.schedule = schedule;
      if (choice.pp > 1 && microbatches < schedule::schedule_named(schedule).min_microbatches(choice.pp)) continue;
      if (choice.vpp > 1 && microbatches % choice.pp != 0) continue;  // groups that are not whole wait longer
      for (const char* recompute : {"none", "selective", "full"}) {
        choice.recompute = recompute;
        for (const char* sharding : {"", "optim", "optim_grads", "optim_grads_params"}) {
          if (ranks == 1 && *sharding != '\0') continue;
          choice.sharding = sharding;
          add(all, choice, {least_state_bytes(weights, choice, ranks), update_s(weights, choice, ranks)}, microbatches);
        }
      }
    }
  }

  /// Bytes that some rank of a layout holds at least of weights, gradients and the optimizer's state, and the time that
  /// a rank with all layers would take to update them.
  struct LeastOfWeights {
    double bytes = 0, update_s = 0;
  };

  void add(std::vector<Candidate>& all, LayoutChoice choice, const LeastOfWeights& weights, std::int64_t microbatches) {
    if (weights.bytes > capacity_) {
      ++allowed_;
      return;
    }
    for (const WholePasses& whole : whole_passes(choice)) {
      choice.cp_comm_type = whole.way;
      for (const Split& split : splits_of(choice)) {
        ++allowed_;
        choice.stages = split.stages;
        if (weights.bytes + least_pass_bytes(whole, choice, microbatches, split.first_share) > capacity_) continue;
        all.push_back({choice, least_step_s(whole, weights.update_s, choice, microbatches, split.largest_share)});
      }
    }
  }

  double update_s(const WholeWeights& weights, const LayoutChoice& choice, int ranks) const {
    const StateOwners owners = owners_of(choice, ranks);
    return memory_s(hardware_, hardware_.software.optimizer_bytes *
                                   (weights.dense.elements / owners.dense + weights.experts.elements / owners.experts));
  }

  /// Equal stages where the layers divide, and balanced ones where these differ: of one stage a rank, or of two where
  /// the layers do not divide. With more they even out a rank's work by themselves.
  std::vector<Split> splits_of(const LayoutChoice& choice) {
    const int pp = choice.pp, vpp = choice.vpp;
    if (pp == 1) return {{}};
    const int stages = pp * vpp;
    const bool divide = num_layers_ % stages == 0;
    if (vpp > (divide ? 1 : 2)) return divide ? std::vector<Split>{{"", 1.0 / pp, 1.0 / pp}} : std::vector<Split>{};
    BalancedStages& by_cost = balanced_.at({choice.tp, choice.cp, choice.micro_batch_size, choice.recompute});
    const auto [at, is_new] = by_cost.layers.try_emplace(stages);
    const std::vector<std::int64_t>& balanced = at->second;
    if (is_new) at->second = balanced_layers(num_layers_, stages, split_costs(by_cost.config, by_cost.shape, stages));
    std::vector<Split> splits;
    if (divide) splits.push_back({"", 1.0 / pp, 1.0 / pp});
    if (std::ranges::all_of(balanced, [&](std::int64_t layers) { return layers * stages == num_layers_; }))
      return splits;
    const bool v_shaped = schedule::schedule_named(choice.schedule).v_shaped;
    const auto placement = v_shaped ? schedule::Placement::v_shaped(pp) : schedule::Placement::looped(pp, vpp);
    std::vector<std::int64_t> of_rank(static_cast<std::size_t>(pp), 0);
    for (int stage = 0; stage < stages; ++stage)
      of_rank[static_cast<std::size_t>(placement.rank_of(stage))] += balanced[static_cast<std::size_t>(stage)];
    splits.push_back({"balanced", as_double(of_rank.front()) / as_double(num_layers_),
                      as_double(*std::ranges::max_element(of_rank)) / as_double(num_layers_)});
    return splits;
  }

  /// The recipe on the tp x cp x ep ranks of `choice`, without a pipeline; nothing where a rule is against it.
  std::optional<ResolvedRun> without_pipeline(const LayoutChoice& choice) const {
    config::RunConfig config = with_layout(recipe_, {.tp = choice.tp,
                                                     .micro_batch_size = choice.micro_batch_size,
                                                     .recompute = choice.recompute,
                                                     .cp = choice.cp,
                                                     .cp_comm_type = choice.cp_comm_type,
                                                     .ep = choice.ep,
                                                     .etp = choice.etp});
    const int together = choice.etp == 0 ? 1 : std::gcd(choice.ep, choice.tp * choice.cp);
    const int dp = choice.ep / together;
    config.parallel.world_size = choice.tp * choice.cp * dp;
    config.train.global_batch_size = choice.micro_batch_size * dp;
    config.schedule = {};
    config.train.memory_limit_gb = 0;  // of ranks that share a model
    return resolve_if_allowed(std::move(config), facts_);
  }

  /// Null where a rule is against such sizes.
  const WholeWeights* whole_weights(const LayoutChoice& sizes) {
    const auto [at, is_new] = weights_.try_emplace({sizes.tp, sizes.ep, sizes.etp});
    std::optional<WholeWeights>& whole = at->second;
    const std::optional<ResolvedRun> run =
        is_new ? without_pipeline({.tp = sizes.tp, .ep = sizes.ep, .etp = sizes.etp}) : std::nullopt;
    if (run) {
      const ElementBytes bytes = element_bytes_of(run->config);
      whole.emplace();
      for (const ParameterSpec& spec : rank_parameters(*run, 0, 0))
        (spec.of_expert ? whole->experts : whole->dense).add(spec, bytes);
      WeightBytes frozen;
      if (run->shape.lora)
        for (const ParameterSpec& spec :
             model_parameters(run->shape, sizes.tp, 0, run->parts, expert_share(*run, /*rank=*/0)))
          frozen.add(spec, bytes);
      whole->frozen_bytes = frozen.parameters;
    }
    return whole ? &*whole : nullptr;
  }

  /// The passes of a microbatch in each way that heads allow, without those that another beats.
  const std::vector<WholePasses>& whole_passes(LayoutChoice choice) {
    const auto [at, is_new] =
        passes_.try_emplace({choice.tp, choice.cp, choice.ep, choice.etp, choice.micro_batch_size, choice.recompute});
    std::vector<WholePasses>& all = at->second;
    if (!is_new) return all;
    for (const std::string& way : ways_of(choice.tp, choice.cp)) {
      choice.cp_comm_type = way;
      std::optional<ResolvedRun> run = without_pipeline(choice);
      if (!run) continue;
      const MicrobatchCost cost = microbatch_cost(*run, hardware_);
      const StageSpec& part = run->parts.front();
      WholePasses whole{.way = way,
                        .forward_s = cost.forward.sum(),
                        .backward_s = cost.backward.sum(),
                        .activation_bytes = stage_activation_bytes(run->config, run->shape, part) +
                                            recomputed_bytes(run->config, run->shape, part),
                        .gathered_bytes = gathered_bytes(run->config, run->shape)};
      if (one_layer_kind(run->shape) && run->shape.mtp_depths == 0)
        for (const StepParts* parts : {&cost.forward, &cost.backward})
          whole.layers_s += parts->matrices + parts->attention;
      balanced_.try_emplace({choice.tp, choice.cp, choice.micro_batch_size, choice.recompute},
                            BalancedStages{.config = std::move(run->config), .shape = std::move(run->shape)});
      if (std::ranges::any_of(all, [&](const WholePasses& other) { return other.beats(whole); })) continue;
      std::erase_if(all, [&](const WholePasses& other) { return whole.beats(other); });
      all.push_back(std::move(whole));
    }
    return all;
  }

  std::vector<std::string> ways_of(int tp, int cp) const {
    if (cp == 1) return {""};
    std::vector<std::string> ways;
    const std::int64_t ranks = std::int64_t{tp} * cp;
    if (model_.num_attention_heads % ranks == 0 && groups_ % ranks == 0)
      ways.emplace_back(name_of(SequenceExchange::AllToAll));
    for (const SequenceExchange way : {SequenceExchange::AllGather, SequenceExchange::Ring})
      ways.emplace_back(name_of(way));
    return ways;
  }

  const config::RunConfig& recipe_;
  const Hardware& hardware_;
  double capacity_;
  const Facts& facts_;
  bool follows_microbatch_;  ///< losses do: that of the recipe is not changed
  std::int64_t world_;
  config::ModelConfig model_;
  std::int64_t num_layers_ = 0;       ///< of all stacks
  std::int64_t groups_ = 1;           ///< of keys and values
  std::vector<int> sharing_;          ///< sizes of context parallelism that are tried
  std::vector<std::int64_t> widths_;  ///< what tp must divide
  std::int64_t expert_width_ = 0;     ///< also, where experts are split as other weights are
  std::int64_t batch_ = 0;
  std::int64_t allowed_ = 0;
  std::map<std::tuple<int, int, int>, std::optional<WholeWeights>> weights_;
  std::map<std::tuple<int, int, int, int, std::int64_t, std::string>, std::vector<WholePasses>> passes_;
  std::map<std::tuple<int, int, std::int64_t, std::string>, BalancedStages> balanced_;
};

bool faster(const FoundLayout& a, const FoundLayout& b) { return a.cost.step_s < b.cost.step_s; }

}  // namespace

config::RunConfig with_layout(config::RunConfig recipe, const LayoutChoice& choice) {
  config::ParallelConfig& parallel = recipe.parallel;
  parallel.tp = choice.tp;
  parallel.pp = choice.pp;
  parallel.vpp = choice.vpp;
  parallel.dp = 0;
  parallel.cp = choice.cp;
  parallel.cp_comm_type = choice.cp > 1 && !choice.cp_comm_type.empty() ? choice.cp_comm_type : "auto";
  parallel.ep = choice.ep;
  parallel.etp = choice.etp;
  parallel.sp = choice.tp > 1 && recipe.data.seq_length / std::max(1, parallel.cp) % choice.tp == 0;
  parallel.pp_schedule = choice.schedule;
  parallel.microbatch_group_size = 0;
  reset_stages(parallel);
  parallel.pipeline_split_rank = 0;
  parallel.pp_layout = choice.stages;
  recipe.train.micro_batch_size = choice.micro_batch_size;
  recipe.train.recompute = choice.recompute;
  recipe.train.recompute_method = config::TrainConfig().recompute_method;
  recipe.train.recompute_num_layers = 0;
  recipe.train.recompute_layers.clear();
  recipe.train.distribute_saved_activations = false;
  if (choice.recompute == kFitLayers) {
    recipe.train.recompute = "full";
    recipe.train.recompute_layers = kFitLayers;
    recipe.train.memory_limit_gb = choice.limit_gb;
  }
  recipe.train.recompute_partial_microbatches = 0;
  recipe.optimizer.use_distributed_optimizer = !choice.sharding.empty();
  recipe.optimizer.data_parallel_sharding_strategy = choice.sharding.empty() ? "optim" : choice.sharding;
  return recipe;
}

namespace {

/// The flags that take back what a recipe says of its stages and schedule, " --pp-layout=".
std::string flags_that_reset_stages(const config::ParallelConfig& parallel, const LayoutChoice& choice) {
  std::string flags;
  if (choice.pp == 1 && parallel.vpp > 1) flags += " --vpp 1";
  if (choice.pp == 1 && !parallel.pp_schedule.empty()) flags += " --schedule=";
  if (parallel.microbatch_group_size > 0) flags += " --parallel.microbatch_group_size 0";
  if (!parallel.pp_layout.empty() && choice.stages.empty()) flags += " --pp-layout=";
  for (const auto& [name, layers] : {std::pair{"layers_per_virtual_stage", parallel.layers_per_virtual_stage},
                                     {"first_stage_layers", parallel.first_stage_layers},
                                     {"last_stage_layers", parallel.last_stage_layers}})
    if (layers > 0) flags += concat(" --parallel.", name, " 0");
  for (const auto& [name, is_on] : {std::pair{"account_for_embedding", parallel.account_for_embedding},
                                    {"account_for_loss", parallel.account_for_loss},
                                    {"standalone_embedding_stage", parallel.standalone_embedding_stage}})
    if (is_on) flags += concat(" --parallel.", name, " false");
  if (parallel.pipeline_split_rank > 0) flags += " --parallel.pipeline_split_rank 0";
  return flags;
}

/// The flags that take back how a recipe recomputes.
std::string flags_that_reset_recomputation(const config::TrainConfig& train, const LayoutChoice& choice) {
  std::string flags;
  if (!train.recompute_layers.empty() && choice.recompute != kFitLayers) flags += " --train.recompute_layers=";
  if (train.recompute_num_layers > 0) flags += " --train.recompute_num_layers 0";
  if (const auto& method = config::TrainConfig().recompute_method; train.recompute_method != method)
    flags += concat(" --train.recompute_method ", method);
  if (train.distribute_saved_activations) flags += " --train.distribute_saved_activations false";
  if (train.recompute_partial_microbatches > 0) flags += " --train.recompute_partial_microbatches 0";
  return flags;
}

}  // namespace

std::string flags_of(const config::RunConfig& recipe, const LayoutChoice& choice) {
  const config::RunConfig config = with_layout(recipe, choice);
  std::string flags = concat("--tp ", choice.tp,
                             config.parallel.sp   ? " --sp"
                             : recipe.parallel.sp ? " --sp false"
                                                  : "",
                             " --pp ", choice.pp, recipe.parallel.dp > 0 ? " --dp 0" : "");
  if (choice.cp > 1)
    flags += concat(" --cp ", choice.cp, " --cp-comm-type ", config.parallel.cp_comm_type);
  else if (recipe.parallel.cp > 1)
    flags += " --cp 1";
  if (choice.ep > 1 || recipe.parallel.ep > 1) flags += concat(" --ep ", choice.ep);
  if (choice.etp > 0 || recipe.parallel.etp > 0) flags += concat(" --etp ", choice.etp);
  if (choice.pp > 1) flags += concat(" --vpp ", choice.vpp, " --schedule ", choice.schedule);
  if (!choice.stages.empty()) flags += concat(" --pp-layout ", choice.stages);
  flags += flags_that_reset_stages(recipe.parallel, choice);
  flags += concat(" --micro-batch-size ", choice.micro_batch_size, " --train.recompute ", config.train.recompute);
  if (choice.recompute == kFitLayers)
    flags += concat(" --train.recompute_layers fit --train.memory_limit_gb ", choice.limit_gb);
  flags += flags_that_reset_recomputation(recipe.train, choice);
  if (!choice.sharding.empty())
    flags += concat(" --use-distributed-optimizer --data-parallel-sharding-strategy ", choice.sharding);
  else if (recipe.optimizer.use_distributed_optimizer)
    flags += " --use-distributed-optimizer false --data-parallel-sharding-strategy optim";
  return flags;
}

LayoutSearch search_layouts(const config::RunConfig& recipe, const Hardware& hardware, double capacity_bytes,
                            const Facts& facts, int most, int max_evaluated, int threads) {
  Search search(recipe, hardware, capacity_bytes, facts);
  const std::vector<Candidate> candidates = search.candidates();
  LayoutSearch result{.allowed = search.allowed()};
  constexpr std::size_t kRound = 16;  // not the number of threads, so that the result is the same for any
  std::size_t next = 0;
  const auto could_be_faster = [&] {
    if (result.layouts.size() < static_cast<std::size_t>(most)) return true;
    return candidates[next].least_step_s < result.layouts[static_cast<std::size_t>(most) - 1].cost.step_s;
  };
  while (next < candidates.size() && could_be_faster()) {
    if (result.evaluated >= max_evaluated) {
      result.complete = false;
      break;
    }
    const std::size_t round = std::min(kRound, candidates.size() - next);
    std::vector<std::optional<FoundLayout>> found(round);
    for_each_on_threads(round, threads,
                        [&](std::size_t i, std::size_t) { found[i] = search.evaluate(candidates[next + i].choice); });
    for (auto& each : found)
      if (each) (search.fits(*each) ? result.layouts : result.too_large).push_back(std::move(*each));
    std::ranges::stable_sort(result.layouts, faster);
    next += round;
    result.evaluated += static_cast<std::int64_t>(round);
  }
  if (result.evaluated > 0 && result.layouts.empty() && result.too_large.empty()) {
    try {
      resolve(with_layout(recipe, candidates.front().choice), facts);
    } catch (const ConfigError& error) {
      result.refused = error.what();
    }
  }
  // Where layers are recomputed at all, fewer of them may do.
  const std::size_t best = std::min(result.layouts.size(), static_cast<std::size_t>(most));
  std::vector<std::optional<FoundLayout>> fewer(best);
  for_each_on_threads(best, threads, [&](std::size_t i, std::size_t) {
    if (result.layouts[i].choice.recompute != "none") fewer[i] = search.with_fewest_layers(result.layouts[i]);
  });
  const auto is_new = [&](const LayoutChoice& choice) {  // of selective and of full one layout becomes
    return std::ranges::find(result.layouts, choice, &FoundLayout::choice) == result.layouts.end();
  };
  for (auto& each : fewer)
    if (each && search.fits(*each) && is_new(each->choice)) result.layouts.push_back(std::move(*each));
  std::ranges::stable_sort(result.layouts, faster);
  std::ranges::stable_sort(result.too_large, {}, &FoundLayout::held_bytes);
  return result;
}

std::vector<FoundLayout> pareto(std::vector<FoundLayout> layouts) {
  std::ranges::stable_sort(layouts, [](const FoundLayout& a, const FoundLayout& b) {
    return std::pair(a.cost.step_s, a.held_bytes()) < std::pair(b.cost.step_s, b.held_bytes());
  });
  std::vector<FoundLayout> best;
  for (FoundLayout& each : layouts)
    if (best.empty() || each.held_bytes() < best.back().held_bytes()) best.push_back(std::move(each));
  return best;
}

}  // namespace megatron::plan
