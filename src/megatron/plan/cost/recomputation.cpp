#include "megatron/plan/cost/recomputation.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/format.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/plan/rule_list.h"
#include "megatron/schedule/simulate.h"
#include "megatron/schedule/table.h"

namespace megatron::plan {
namespace {

constexpr const char* kNoLayers = "nothing";
constexpr std::size_t kMaxLayerText = 1 << 16;
constexpr const char* kForms = "such as 0-3,8,12-22:2, or nothing, or fit";

/// "3", "0-3" or "12-22:2".
class LayerRange {
 public:
  LayerRange(std::string_view text, const std::string& all, std::int64_t num_layers) : left_(text), all_(all) {
    first_ = last_ = number();
    if (taken('-')) last_ = number();
    if (last_ != first_ && taken(':')) step_ = number();
    if (!left_.empty() || step_ < 1 || last_ < first_) fail(kForms);
    if (last_ >= num_layers) fail(concat("from 0 to ", num_layers - 1));
    step_ = std::min(step_, num_layers);  // no sum of it overflows
  }

  void mark(std::vector<bool>& layers) const {
    for (std::int64_t l = first_; l <= last_; l += step_) layers[static_cast<std::size_t>(l)] = true;
  }

 private:
  [[noreturn]] void fail(const std::string& form) const {
    constexpr std::size_t kShown = 60;
    throw ConfigError(rule_got_fix(concat("train.recompute_layers must name layers, ", form, "."),
                                   all_.substr(0, kShown), "--train.recompute_layers nothing"));
  }
  bool taken(char sign) {
    if (left_.empty() || left_.front() != sign) return false;
    left_.remove_prefix(1);
    return true;
  }
  std::int64_t number() {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), value);
    if (error != std::errc() || value < 0) fail(kForms);
    left_.remove_prefix(static_cast<std::size_t>(end - left_.data()));
    return value;
  }

  std::string_view left_;
  const std::string& all_;
  std::int64_t first_ = 0, last_ = 0, step_ = 1;
};

/// The stage's layers [begin, end) in groups of `size`.
void add_groups(std::vector<LayerGroup>& groups, std::int64_t begin, std::int64_t end, std::int64_t size, bool again) {
  for (std::int64_t first = begin; first < end; first += size)
    groups.push_back({.first = first, .last = std::min(first + size, end), .again = again});
}

/// Where neighbours differ a group ends; layers that are computed again are groups by themselves.
std::vector<LayerGroup> groups_of_list(const std::vector<bool>& listed, const StageSpec& part) {
  std::vector<LayerGroup> groups;
  const auto again = [&](std::int64_t l) { return listed.at(static_cast<std::size_t>(part.first_layer + l)); };
  for (std::int64_t first = 0, last = 0; first < part.num_layers; first = last) {
    last = first + 1;
    while (last < part.num_layers && again(last) == again(first)) ++last;
    add_groups(groups, first, last, again(first) ? 1 : last - first, again(first));
  }
  return groups;
}

std::vector<LayerGroup> groups_of_stage(const LayerRecomputation& recomputation, const StageSpec& part, bool partial) {
  using Method = LayerRecomputation::Method;
  const std::int64_t layers = part.num_layers;
  std::int64_t size = 1, again = 0;
  switch (recomputation.method) {
    case Method::None:
      break;
    case Method::Uniform:
      size = std::max<std::int64_t>(recomputation.num_layers, 1);
      again = partial ? 0 : layers;
      break;
    case Method::Block:
      again = recomputation.some_partial && !partial ? layers : std::min(recomputation.num_layers, layers);
      break;
    case Method::Listed:
      if (!partial) return groups_of_list(recomputation.listed, part);
      break;
  }
  std::vector<LayerGroup> groups;
  add_groups(groups, 0, again, size, true);
  if (again < layers) groups.push_back({.first = again, .last = layers, .again = false});
  return groups;
}

}  // namespace

std::vector<bool> listed_layers(const std::string& text, std::int64_t num_layers) {
  std::vector<bool> layers(static_cast<std::size_t>(num_layers), false);
  if (text == kNoLayers) return layers;
  if (text.size() > kMaxLayerText)
    throw ConfigError(rule_got_fix(concat("train.recompute_layers must have at most ", kMaxLayerText, " characters."),
                                   concat(text.size()), "--train.recompute_layers nothing"));
  std::string_view left = text;
  while (true) {
    const std::size_t comma = left.find(',');
    LayerRange(left.substr(0, comma), text, num_layers).mark(layers);
    if (comma == std::string_view::npos) return layers;
    left.remove_prefix(comma + 1);
  }
}

std::string text_of_layers(const std::vector<bool>& layers) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < layers.size(); first = last + 1) {
    last = first;
    if (!layers[first]) continue;
    while (last + 1 < layers.size() && layers[last + 1]) ++last;
    text += concat(text.empty() ? "" : ",", first, last > first ? concat("-", last) : "");
  }
  return text.empty() ? kNoLayers : text;
}

LayerRecomputation layer_recomputation(const config::TrainConfig& train, std::int64_t num_layers) {
  using Method = LayerRecomputation::Method;
  if (train.recompute != "full") return {};
  LayerRecomputation result{.method = train.recompute_method == "block" ? Method::Block : Method::Uniform,
                            .num_layers = train.recompute_num_layers,
                            .some_partial = train.recompute_partial_microbatches > 0};
  if (train.recompute_layers.empty() || train.recompute_layers == kFitLayers) return result;
  result.method = Method::Listed;
  result.listed = listed_layers(train.recompute_layers, num_layers);
  return result;
}

std::vector<LayerGroup> layer_groups(const LayerRecomputation& recomputation, const StageSpec& part,
                                     std::int64_t encoder_layers, bool partial) {
  std::vector<LayerGroup> groups;
  const std::int64_t cut = encoder_layers - part.first_layer;
  for (const LayerGroup& group : groups_of_stage(recomputation, part, partial)) {
    groups.push_back(group);
    if (group.first >= cut || cut >= group.last) continue;
    groups.back().last = cut;
    groups.push_back({.first = cut, .last = group.last, .again = group.again});
  }
  return groups;
}

bool depths_again(const LayerRecomputation& recomputation, bool partial) {
  return recomputation.method == LayerRecomputation::Method::Uniform && !(partial && recomputation.some_partial);
}

void check_recomputation(const config::TrainConfig& train, int pp, std::int64_t num_layers, Rules& rules) {
  const bool full = train.recompute == "full";
  rules.require(full || train.recompute_num_layers == 0, "train.recompute_num_layers needs train.recompute full.",
                train.recompute, "--train.recompute full");
  rules.require(full || !train.distribute_saved_activations,
                "train.distribute_saved_activations needs train.recompute full.", train.recompute,
                "--train.recompute full");
  rules.require(!full || train.recompute_method != "block" || train.recompute_num_layers > 0,
                "train.recompute_method block needs train.recompute_num_layers.", "0", "--recompute-num-layers 1");
  const bool in_part = train.recompute_partial_microbatches > 0;
  rules.require(train.recompute != "none" || !in_part,
                "train.recompute_partial_microbatches needs train.recompute full or selective.", train.recompute,
                "--train.recompute full");
  rules.require(pp > 1 || !in_part,
                "train.recompute_partial_microbatches needs a pipeline, whose ranks hold several microbatches at once: "
                "parallel.pp of at least 2.",
                concat("pp ", pp), "--train.recompute_partial_microbatches 0 (the default), or --pp 2");
  rules.require(train.recompute != "selective" || !train.recompute_modules.empty(),
                "train.recompute selective needs train.recompute_modules.", "none",
                "--train.recompute_modules core_attn");
  rules.range("train.memory_limit_gb", train.memory_limit_gb, 0.0, 1e9);
  const std::string& layers = train.recompute_layers;
  if (layers.empty()) return;
  rules.require(full, "train.recompute_layers needs train.recompute full.", train.recompute, "--train.recompute full");
  rules.require(train.recompute_method == "uniform" && train.recompute_num_layers == 0,
                "train.recompute_layers takes the place of train.recompute_method and train.recompute_num_layers.",
                concat(train.recompute_method, " ", train.recompute_num_layers),
                "--train.recompute_method uniform --train.recompute_num_layers 0 (the defaults)");
  rules.require(layers != kFitLayers || train.memory_limit_gb > 0,
                "train.recompute_layers fit needs train.memory_limit_gb, which layers are chosen for.", "0",
                "--train.memory_limit_gb 40");
  if (layers != kFitLayers && num_layers >= 1 && num_layers <= 2 * kMaxLayers)
    rules.attempt([&] { listed_layers(layers, num_layers); });
}

namespace {

/// Of the layers of a pipeline rank, those first whose kept bytes are the most for the time that they take again.
std::vector<std::int64_t> by_benefit(const ResolvedRun& run, const schedule::Program& program, int rank) {
  config::RunConfig config = run.config;
  config.train.recompute = "none";
  std::vector<std::pair<double, std::int64_t>> layers;
  for (const int stage : program.placement.stages_of(rank)) {
    const StageSpec& part = run.parts[static_cast<std::size_t>(stage)];
    int alive = 0, most = 0;  // microbatches of the stage at once
    for (const schedule::Op& op : program.ranks[static_cast<std::size_t>(rank)]) {
      if (op.stage != stage) continue;
      if (op.kind == schedule::Kind::Forward) most = std::max(most, ++alive);
      if (op.kind == schedule::Kind::Backward || op.kind == schedule::Kind::BackwardInput) --alive;
    }
    for (std::int64_t l = part.first_layer; l < part.first_layer + part.num_layers; ++l) {
      const LayerSpec layer = run.shape.layer(l);
      const LayerFlops flops =
          layer_flops(layer, tokens_of(layer, 1, config.data.seq_length, config.data.decoder_seq_length));
      const auto bytes = static_cast<double>(layer_activation_bytes(config, layer));
      layers.emplace_back(-most * bytes / (flops.matrices + flops.attention), l);
    }
  }
  std::ranges::stable_sort(layers, {}, [](const auto& each) { return each.first; });
  std::vector<std::int64_t> order;
  for (const auto& [benefit, layer] : layers) order.push_back(layer);
  return order;
}

/// What each pipeline rank holds where the first counts[rank] of its layers in `orders` are computed again.
class RankMemory {
 public:
  explicit RankMemory(const ResolvedRun& run) : run_(run), program_(pipeline_program(run, run.microbatches_per_step)) {
    for (int rank = 0; rank < run.placement.num_ranks(); ++rank) orders_.push_back(by_benefit(run, program_, rank));
  }

  std::int64_t layers(std::size_t rank) const { return std::ssize(orders_[rank]); }

  std::string text(const std::vector<std::int64_t>& counts) const {
    std::vector<bool> listed(static_cast<std::size_t>(run_.shape.num_layers), false);
    for (std::size_t rank = 0; rank < orders_.size(); ++rank)
      for (std::int64_t k = 0; k < counts[rank]; ++k)
        listed[static_cast<std::size_t>(orders_[rank][static_cast<std::size_t>(k)])] = true;
    return text_of_layers(listed);
  }

  std::vector<MemoryPlan> with(const std::vector<std::int64_t>& counts) {
    run_.config.train.recompute_layers = text(counts);
    return as_is();
  }

  std::vector<MemoryPlan> as_is() const {
    const schedule::Timeline timeline = schedule::simulate(program_, stage_costs(run_.config, run_.shape, run_.parts));
    std::vector<MemoryPlan> plans;
    for (int rank = 0; rank < run_.placement.num_ranks(); ++rank)
      plans.push_back(memory_plan(run_, 0, rank, {timeline, rank}));
    return plans;
  }

 private:
  ResolvedRun run_;
  schedule::Program program_;
  std::vector<std::vector<std::int64_t>> orders_;
};

constexpr double kGigabyte = 1e9;

bool is_within(const ResolvedRun& run, const MemoryPlan& memory) {
  return static_cast<double>(memory.total()) <= run.config.train.memory_limit_gb * kGigabyte;
}

/// The schedule auto was chosen where every layer is computed again.
bool fits(const ResolvedRun& run, const MemoryPlan& memory) {
  const std::int64_t activations = run.config.parallel.pp_memory_limit;
  return is_within(run, memory) && (activations == 0 || memory.activations <= activations);
}

bool all_within(const ResolvedRun& run, const std::vector<MemoryPlan>& plans) {
  return std::ranges::all_of(plans, [&](const MemoryPlan& memory) { return is_within(run, memory); });
}

std::string limit_flag(std::int64_t bytes) {
  return fmt::format("--train.memory_limit_gb {}", std::ceil(static_cast<double>(bytes) / kGigabyte * 1000) / 1000);
}

/// Throws for ranks that cannot hold less than `plans`. `otherwise`: a fix besides a higher limit.
[[noreturn]] void refuse_limit(const ResolvedRun& run, const std::vector<MemoryPlan>& plans, const std::string& rule,
                               const std::string& otherwise) {
  const auto largest = std::ranges::max_element(plans, {}, &MemoryPlan::total);
  throw ConfigError(rule_got_fix(
      rule,
      concat(human_bytes(static_cast<double>(largest->total())), " on pipeline rank ", largest - plans.begin(),
             ", limit ", human_bytes(run.config.train.memory_limit_gb * kGigabyte)),
      limit_flag(largest->total()) + otherwise));
}

/// Of each rank the plan that holds less: where a schedule puts off gradients of weights, a layer that is computed
/// again may be there twice, and so hold more than one that is kept.
std::vector<MemoryPlan> smaller_of(std::vector<MemoryPlan> plans, const std::vector<MemoryPlan>& others) {
  for (std::size_t rank = 0; rank < plans.size(); ++rank)
    if (others[rank].total() < plans[rank].total()) plans[rank] = others[rank];
  return plans;
}

/// ", or …fit" for a run whose ranks hold `plans`, where fewer bytes are needed that way; else "".
std::string fit_advice(ResolvedRun run, const std::vector<MemoryPlan>& plans) {
  config::TrainConfig& train = run.config.train;
  train.recompute = "full";
  train.recompute_method = config::TrainConfig().recompute_method;
  train.recompute_num_layers = 0;
  RankMemory memory(run);
  std::vector<std::int64_t> none(plans.size(), 0), all;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) all.push_back(memory.layers(rank));
  const std::vector<MemoryPlan> least = smaller_of(memory.with(all), memory.with(none));
  const std::string advice = ", or --train.recompute full --train.recompute_layers fit";
  if (all_within(run, least)) return advice;
  const std::int64_t bytes = std::ranges::max_element(least, {}, &MemoryPlan::total)->total();
  const bool helps = bytes < std::ranges::max_element(plans, {}, &MemoryPlan::total)->total();
  return helps ? concat(advice, " ", limit_flag(bytes)) : "";
}

/// Puts what "balanced" and "auto" have become in their place: with the costs of the layers that are recomputed in the
/// end, others would be chosen.
void keep_choices(ResolvedRun& run) {
  config::ParallelConfig& parallel = run.config.parallel;
  if (parallel.pp_layout == "balanced") {
    parallel.pp_layout = text_of_stages(run.parts);
    parallel.pipeline_split_rank = 0;  // the layout says it
  }
  if (parallel.pp_schedule != schedule::kAuto || parallel.pp == 1) return;
  const schedule::ScheduleInfo& chosen = schedule::schedule_named(run.schedule_name);
  parallel.pp_schedule = chosen.name;
  if (parallel.layers_per_virtual_stage == 0) parallel.vpp = static_cast<int>(run.parts.size()) / parallel.pp;
  if (!chosen.takes_groups) parallel.microbatch_group_size = 0;
  parallel.pp_memory_limit = 0;  // which only auto reads
}

}  // namespace

void resolve_memory_limit(ResolvedRun& run) {
  if (run.config.train.memory_limit_gb == 0) return;
  RankMemory memory(run);
  if (run.config.train.recompute_layers != kFitLayers) {
    const std::vector<MemoryPlan> plans = memory.as_is();
    if (all_within(run, plans)) return;
    refuse_limit(run, plans, "train.memory_limit_gb must hold what a rank's plan needs.", fit_advice(run, plans));
  }
  const auto ranks = static_cast<std::size_t>(run.placement.num_ranks());
  // What a rank keeps does not depend on what others keep, so all search at once. `enough` layers were seen to fit.
  std::vector<std::int64_t> too_few(ranks, -1), enough(ranks, 0);
  // A rank that need not recompute may hold more where it does: a layer that is computed again is there twice.
  const std::vector<MemoryPlan> without = memory.with(enough);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (fits(run, without[rank])) continue;
    too_few[rank] = 0;
    enough[rank] = memory.layers(rank);
  }
  if (const std::vector<MemoryPlan> all = memory.with(enough); !all_within(run, all))
    refuse_limit(run, smaller_of(all, without),
                 "train.memory_limit_gb must hold what a rank needs with every layer recomputed, or with none.", "");
  const auto is_found = [&](std::size_t rank) { return enough[rank] - too_few[rank] <= 1; };
  for (bool all_found = false; !all_found;) {
    std::vector<std::int64_t> tried(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      tried[rank] = is_found(rank) ? enough[rank] : (too_few[rank] + enough[rank]) / 2;
    const std::vector<MemoryPlan> plans = memory.with(tried);
    all_found = true;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (!is_found(rank)) (fits(run, plans[rank]) ? enough : too_few)[rank] = tried[rank];
      all_found = all_found && is_found(rank);
    }
  }
  run.config.train.recompute_layers = memory.text(enough);
  keep_choices(run);
}

}  // namespace megatron::plan
