#include "megatron/plan/layout_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/base/machine/parallel.h"
#include "megatron/plan/cost/recomputation.h"
#include "megatron/schedule/table.h"

namespace megatron::plan {
namespace {

constexpr std::int64_t kMostMicroBatch = 64;
constexpr int kMostTp = 64, kMostVpp = 12;

double as_double(std::int64_t value) { return static_cast<double>(value); }

/// What one microbatch takes on one tensor-parallel rank that has all layers, and what it holds, by (tp, micro batch,
/// recomputation): the same for every pipeline.
struct WholeModel {
  double microbatch_s = 0;
  double layers_s = 0;  ///< of that the products of layers, where all cost the same; else 0
  double update_s = 0;
  std::int64_t parameter_bytes = 0, gradient_bytes = 0, state_bytes = 0, activation_bytes = 0;
  std::map<int, std::vector<std::int64_t>> balanced = {};  ///< layers by stage, by the number of stages
  config::RunConfig config = {};
  ModelShape shape = {};
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

/// Of a rank of `choice`, without what its schedule and other ranks make it wait for. `ranks` may share the optimizer's
/// state.
double least_step_s(const WholeModel& whole, const LayoutChoice& choice, int ranks, std::int64_t microbatches,
                    double largest_share) {
  const double pp = choice.pp, m = as_double(microbatches);
  const bool splits_backward = choice.pp > 1 && schedule::schedule_named(choice.schedule).splits_backward;
  const double bubble = splits_backward ? 0 : (pp - 1) / (m * choice.vpp);
  const double owners = choice.sharding.empty() ? 1 : ranks;
  const double computed = std::max(whole.microbatch_s / pp * (1 + bubble), whole.layers_s * largest_share);
  return m * computed + whole.update_s / pp / owners;
}

/// Weights, gradients and the optimizer's state, of which some rank has at least its even share, and what the first
/// rank of a pipeline keeps before the first backward pass comes back to it: as many microbatches as there are ranks,
/// of `first_share` of the model.
double least_bytes(const WholeModel& whole, const LayoutChoice& choice, int ranks, std::int64_t microbatches,
                   double first_share) {
  const double owners = choice.sharding.empty() ? 1 : ranks;
  const double gradients = choice.sharding.starts_with("optim_grads") ? 0 : as_double(whole.gradient_bytes);
  const double parameters = as_double(whole.parameter_bytes) / (choice.sharding == "optim_grads_params" ? owners : 1);
  const double kept = as_double(whole.activation_bytes * std::min<std::int64_t>(microbatches, choice.pp));
  // A share of more than the mean would count a recomputed layer's working set more than once.
  return (parameters + gradients + as_double(whole.state_bytes) / owners) / choice.pp +
         kept * std::min(first_share, 1.0 / choice.pp);
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
        world_(std::max(1, recipe.parallel.world_size)) {
    config::RunConfig alone = with_layout(recipe, {});
    alone.parallel.world_size = alone.parallel.ep = alone.parallel.cp = 1;
    alone.train.micro_batch_size = alone.train.global_batch_size = 1;
    alone.train.memory_limit_gb = 0;                           // of ranks that share the model
    alone.schedule = {};                                       // of so few samples
    const ResolvedRun run = resolve(std::move(alone), facts);  // what is wrong with the recipe itself is said here
    model_ = run.config.model;
    num_layers_ = run.shape.num_layers;
    widths_ = {model_.num_attention_heads, run.shape.ffn_hidden};
    if (run.shape.experts)
      widths_.insert(widths_.end(), {run.shape.experts->expert.width, run.shape.experts->shared_width});
    batch_ = recipe.train.global_batch_size;
    for (const auto& [name, size] : {std::pair{"ep", recipe.parallel.ep}, {"cp", recipe.parallel.cp}})
      if (size < 1 || size > std::max<std::int64_t>(1, world_))
        throw ConfigError(rule_got_fix(concat("A search needs a parallel.", name, " of 1 to the world size."),
                                       concat(size, ", world size ", world_), concat("--", name, " 1 (the default)")));
    // a2a divides heads by tp x cp. 1 where cp alone does not: tp 1 is left, whose plan says the rule.
    if (const std::int64_t cp = recipe.parallel.cp; cp > 1 && recipe.parallel.cp_comm_type == "a2a")
      for (const std::int64_t heads : {model_.num_attention_heads, run.shape.groups()})
        widths_.push_back(heads % cp == 0 ? heads / cp : 1);
    if (batch_ < 1)
      throw ConfigError(
          rule_got_fix("A search needs train.global_batch_size.", concat(batch_), "--global-batch-size 1536"));
  }

  /// All that divide what they must, the fastest by their bound first.
  std::vector<Candidate> candidates() {
    std::vector<Candidate> all;
    for (const std::int64_t tp : divisors(world_, std::min<std::int64_t>(kMostTp, hardware_.ranks_per_node))) {
      if (std::ranges::any_of(widths_, [&](std::int64_t width) { return width % tp != 0; })) continue;
      if (world_ / tp % recipe_.parallel.cp != 0) continue;
      const std::int64_t left = world_ / tp / recipe_.parallel.cp;
      for (const std::int64_t pp : divisors(left, num_layers_)) {
        const std::int64_t dp = left / pp;
        if (batch_ % dp != 0 || dp * recipe_.parallel.cp % recipe_.parallel.ep != 0) continue;
        for (std::int64_t vpp = 1; vpp <= (pp == 1 ? 1 : std::min<std::int64_t>(num_layers_ / pp, kMostVpp)); ++vpp)
          for (const std::int64_t micro : divisors(batch_ / dp, kMostMicroBatch))
            add(all, static_cast<int>(tp), static_cast<int>(pp), static_cast<int>(vpp), micro, static_cast<int>(dp));
      }
    }
    std::ranges::stable_sort(all, {}, &Candidate::least_step_s);
    return all;
  }

  std::int64_t allowed() const { return allowed_; }

  /// Nothing where a rule that was not foreseen is against it.
  std::optional<FoundLayout> evaluate(const LayoutChoice& choice) const {
    const config::RunConfig config = with_layout(recipe_, choice);
    if (!broken_rules(config, facts_).empty()) return std::nullopt;
    const ResolvedRun run = resolve(config, facts_);
    FoundLayout found{.choice = choice,
                      .dp = run.grid.sample_shares(),
                      .microbatches = run.microbatches_per_step,
                      .memory = largest_memory(run),
                      .cost = {}};
    found.cost = step_cost(run, hardware_);
    for (const StagePart& part : run.parts) {
      found.stage_layers.push_back(part.num_layers);
      found.recomputed += std::ranges::count(layers_again(run.config.train, run.shape, part, false), true);
    }
    found.tokens_per_s = as_double(batch_ * run.config.data.seq_length) / found.cost.step_s;
    return found;
  }

  /// The layout with as few layers recomputed as fit; nothing where that is none or all of them.
  std::optional<FoundLayout> with_fewest_layers(LayoutChoice choice) const {
    choice.recompute = kFitLayers;
    choice.limit_gb = std::floor(capacity_ / 1e6) / 1e3;
    if (const double limit = recipe_.train.memory_limit_gb; limit > 0)
      choice.limit_gb = std::min(choice.limit_gb, limit);
    auto found = evaluate(choice);
    if (found && (found->recomputed == 0 || found->recomputed == num_layers_)) return std::nullopt;
    return found;
  }

  bool fits(const FoundLayout& found) const { return as_double(found.memory.total()) <= capacity_; }

 private:
  void add(std::vector<Candidate>& all, int tp, int pp, int vpp, std::int64_t micro, int dp) {
    const std::int64_t microbatches = batch_ / dp / micro;
    const int owners = dp * recipe_.parallel.cp;  // ranks that may share the optimizer's state
    for (const std::string& schedule : schedules_of(pp, vpp)) {
      if (pp > 1 && microbatches < schedule::schedule_named(schedule).min_microbatches(pp)) continue;
      if (vpp > 1 && microbatches % pp != 0) continue;  // groups that are not whole wait longer
      for (const char* recompute : {"none", "selective", "full"})
        for (const char* sharding : {"", "optim", "optim_grads", "optim_grads_params"}) {
          if (owners == 1 && *sharding != '\0') continue;
          WholeModel& whole = whole_model(tp, micro, recompute);
          for (const Split& split : splits_of(whole, schedule, pp, vpp)) {
            ++allowed_;
            const LayoutChoice choice{tp, pp, vpp, micro, schedule, recompute, sharding, split.stages};
            if (least_bytes(whole, choice, owners, microbatches, split.first_share) > capacity_) continue;
            all.push_back({choice, least_step_s(whole, choice, owners, microbatches, split.largest_share)});
          }
        }
    }
  }

  /// Equal stages where the layers divide, and balanced ones where these differ: of one stage a rank, or of two where
  /// the layers do not divide. With more they even out a rank's work by themselves.
  std::vector<Split> splits_of(WholeModel& whole, const std::string& schedule, int pp, int vpp) {
    if (pp == 1) return {{}};
    const int stages = pp * vpp;
    const bool divide = num_layers_ % stages == 0;
    if (vpp > (divide ? 1 : 2)) return divide ? std::vector<Split>{{"", 1.0 / pp, 1.0 / pp}} : std::vector<Split>{};
    const auto [at, is_new] = whole.balanced.try_emplace(stages);
    const std::vector<std::int64_t>& balanced = at->second;
    if (is_new) at->second = balanced_layers(num_layers_, stages, split_costs(whole.config, whole.shape, stages));
    std::vector<Split> splits;
    if (divide) splits.push_back({"", 1.0 / pp, 1.0 / pp});
    if (std::ranges::all_of(balanced, [&](std::int64_t layers) { return layers * stages == num_layers_; }))
      return splits;
    const bool v_shaped = schedule::schedule_named(schedule).v_shaped;
    const auto placement = v_shaped ? schedule::Placement::v_shaped(pp) : schedule::Placement::looped(pp, vpp);
    std::vector<std::int64_t> of_rank(static_cast<std::size_t>(pp), 0);
    for (int stage = 0; stage < stages; ++stage)
      of_rank[static_cast<std::size_t>(placement.rank_of(stage))] += balanced[static_cast<std::size_t>(stage)];
    splits.push_back({"balanced", as_double(of_rank.front()) / as_double(num_layers_),
                      as_double(*std::ranges::max_element(of_rank)) / as_double(num_layers_)});
    return splits;
  }

  WholeModel& whole_model(int tp, std::int64_t micro, const char* recompute) {
    const auto [at, is_new] = whole_.try_emplace({tp, micro, recompute});
    if (!is_new) return at->second;
    config::RunConfig config = with_layout(recipe_, {.tp = tp, .micro_batch_size = micro, .recompute = recompute});
    config.parallel.world_size = tp * config.parallel.ep * config.parallel.cp;
    config.train.global_batch_size = micro * config.parallel.ep;
    config.schedule = {};
    config.train.memory_limit_gb = 0;  // of ranks that share a model
    WholeModel& whole = at->second;
    const ResolvedRun run = resolve(std::move(config), facts_);
    whole.config = run.config;
    whole.shape = run.shape;
    const std::vector<double> layers = split_costs(run.config, run.shape, 1).layers;
    const bool alike = std::ranges::all_of(layers, [&](double layer) { return layer == layers[0]; });
    const StepCost cost = step_cost(run, hardware_);
    const MemoryPlan memory = largest_memory(run);
    whole.update_s = cost.parts.optimizer;
    whole.microbatch_s = cost.parts.sum() - cost.parts.optimizer - cost.parts.data - cost.parts.waiting;
    if (alike) whole.layers_s = cost.parts.matrices + cost.parts.attention;
    whole.parameter_bytes = memory.parameters;
    whole.gradient_bytes = memory.gradients;
    whole.state_bytes = memory.optimizer_state;
    whole.activation_bytes = memory.activations;
    return whole;
  }

  const config::RunConfig& recipe_;
  const Hardware& hardware_;
  double capacity_;
  const Facts& facts_;
  std::int64_t world_;
  config::ModelConfig model_;
  std::int64_t num_layers_ = 0;       ///< of all stacks
  std::vector<std::int64_t> widths_;  ///< what tp must divide
  std::int64_t batch_ = 0;
  std::int64_t allowed_ = 0;
  std::map<std::tuple<int, std::int64_t, std::string>, WholeModel> whole_;
};

bool faster(const FoundLayout& a, const FoundLayout& b) { return a.cost.step_s < b.cost.step_s; }

}  // namespace

config::RunConfig with_layout(config::RunConfig recipe, const LayoutChoice& choice) {
  config::ParallelConfig& parallel = recipe.parallel;
  parallel.tp = choice.tp;
  parallel.pp = choice.pp;
  parallel.vpp = choice.vpp;
  parallel.dp = 0;
  parallel.sp = choice.tp > 1 && recipe.data.seq_length / std::max(1, parallel.cp) % choice.tp == 0;
  parallel.pp_schedule = choice.schedule;
  reset_stages(parallel);
  parallel.pp_layout = choice.stages;
  recipe.train.micro_batch_size = choice.micro_batch_size;
  recipe.train.recompute = choice.recompute;
  recipe.train.recompute_layers.clear();
  if (choice.recompute == kFitLayers) {
    recipe.train.recompute = "full";
    recipe.train.recompute_layers = kFitLayers;
    recipe.train.memory_limit_gb = choice.limit_gb;
  }
  if (choice.recompute == "none" || choice.pp == 1) recipe.train.recompute_partial_microbatches = 0;
  recipe.optimizer.use_distributed_optimizer = !choice.sharding.empty();
  recipe.optimizer.data_parallel_sharding_strategy = choice.sharding.empty() ? "optim" : choice.sharding;
  return recipe;
}

namespace {

/// The flags that take back what a recipe says of its stages, " --pp-layout=".
std::string flags_that_reset_stages(const config::ParallelConfig& parallel, const LayoutChoice& choice) {
  std::string flags;
  if (!parallel.pp_layout.empty() && choice.stages.empty()) flags += " --pp-layout=";
  for (const auto& [name, layers] : {std::pair{"layers_per_virtual_stage", parallel.layers_per_virtual_stage},
                                     {"first_stage_layers", parallel.first_stage_layers},
                                     {"last_stage_layers", parallel.last_stage_layers}})
    if (layers > 0) flags += concat(" --parallel.", name, " 0");
  for (const auto& [name, is_on] : {std::pair{"account_for_embedding", parallel.account_for_embedding},
                                    {"account_for_loss", parallel.account_for_loss},
                                    {"standalone_embedding_stage", parallel.standalone_embedding_stage}})
    if (is_on) flags += concat(" --parallel.", name, " false");
  return flags;
}

}  // namespace

std::string flags_of(const config::RunConfig& recipe, const LayoutChoice& choice) {
  const config::RunConfig config = with_layout(recipe, choice);
  std::string flags = concat("--tp ", choice.tp, config.parallel.sp ? " --sp" : "", " --pp ", choice.pp);
  if (config.parallel.cp > 1) flags += concat(" --cp ", config.parallel.cp);
  if (config.parallel.ep > 1) flags += concat(" --ep ", config.parallel.ep);
  if (choice.pp > 1) flags += concat(" --vpp ", choice.vpp, " --schedule ", choice.schedule);
  if (!choice.stages.empty()) flags += concat(" --pp-layout ", choice.stages);
  flags += flags_that_reset_stages(recipe.parallel, choice);
  flags += concat(" --micro-batch-size ", choice.micro_batch_size, " --train.recompute ", config.train.recompute);
  if (choice.recompute == kFitLayers)
    flags += concat(" --train.recompute_layers fit --train.memory_limit_gb ", choice.limit_gb);
  else if (!recipe.train.recompute_layers.empty())
    flags += " --train.recompute_layers=";
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
  // Where layers are recomputed at all, fewer of them may do.
  const std::size_t best = std::min(result.layouts.size(), static_cast<std::size_t>(most));
  std::vector<std::optional<FoundLayout>> fewer(best);
  for_each_on_threads(best, threads, [&](std::size_t i, std::size_t) {
    const LayoutChoice& choice = result.layouts[i].choice;
    if (choice.recompute != "none") fewer[i] = search.with_fewest_layers(choice);
  });
  const auto is_new = [&](const LayoutChoice& choice) {  // of selective and of full one layout becomes
    return std::ranges::find(result.layouts, choice, &FoundLayout::choice) == result.layouts.end();
  };
  for (auto& each : fewer)
    if (each && search.fits(*each) && is_new(each->choice)) result.layouts.push_back(std::move(*each));
  std::ranges::stable_sort(result.layouts, faster);
  std::ranges::stable_sort(result.too_large, {}, [](const FoundLayout& each) { return each.memory.total(); });
  return result;
}

std::vector<FoundLayout> pareto(std::vector<FoundLayout> layouts) {
  std::ranges::stable_sort(layouts, [](const FoundLayout& a, const FoundLayout& b) {
    return std::pair(a.cost.step_s, a.memory.total()) < std::pair(b.cost.step_s, b.memory.total());
  });
  std::vector<FoundLayout> best;
  for (FoundLayout& each : layouts)
    if (best.empty() || each.memory.total() < best.back().memory.total()) best.push_back(std::move(each));
  return best;
}

}  // namespace megatron::plan
