#include "megatron/plan/cost/fit/memory_options.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/nearest.h"
#include "megatron/config/options.h"

namespace megatron::plan {
namespace {

std::string size_text(std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

/// Tries changes of a run's options.
class MemoryOptions {
 public:
  MemoryOptions(const ResolvedRun& run, const Room& room) : run_(run), room_(room) {}

  /// The changes of one kind each, those that change less first.
  std::vector<std::vector<std::string>> kinds() const {
    return {micro_batches(), recomputation(), sharding(), splits(), types()};
  }

  /// The first of `changes` that fits; nothing where none does.
  std::optional<FittingOptions> first_that_fits(const std::vector<std::string>& changes) const {
    for (const std::string& words : changes) {
      const auto bytes = held_with(words);
      if (bytes && static_cast<std::uint64_t>(*bytes) <= room_.bytes) return FittingOptions{whole(words), *bytes};
    }
    return std::nullopt;
  }

  /// Of `changes` the one with which the run holds least, less than it does now; nothing where none is allowed.
  std::optional<std::string> least(const std::string& with, const std::vector<std::string>& changes) const {
    std::optional<std::string> best;
    std::int64_t bytes = held_with(with).value_or(room_.held(run_));
    for (const std::string& words : changes) {
      const auto now = held_with(joined(with, words));
      if (!now || *now >= bytes) continue;
      bytes = *now;
      best = words;
    }
    return best;
  }

  static std::string joined(const std::string& a, const std::string& b) {
    return a.empty() || b.empty() ? a + b : a + " " + b;
  }

 private:
  /// What the run holds with these words; nothing where they break a rule.
  std::optional<std::int64_t> held_with(const std::string& words) const {
    config::RunConfig config = run_.config;
    std::istringstream stream(whole(words));
    std::vector<std::string> list;
    for (std::string word; stream >> word;) list.push_back(word);
    const bool grows = std::ranges::find(list, "--world-size") != list.end();
    config::parse_words(config::fields_of(config), list, "");
    const auto changed = resolve_if_allowed(
        std::move(config), {.launched_world_size = grows ? 0 : run_.grid.world_size(), .teacher = run_.teacher});
    if (!changed || changed->config.train.global_batch_size != run_.config.train.global_batch_size) return std::nullopt;
    return room_.held(*changed);
  }

  /// `words`, with the global batch where it may be one that nobody has asked for and that would change with them.
  std::string whole(const std::string& words) const {
    const config::TrainConfig& train = run_.config.train;
    const auto has = [&](const char* option) { return words.find(option) != std::string::npos; };
    const bool follows = train.micro_batch_size * run_.grid.sample_shares() == train.global_batch_size;
    const bool changes = has("--micro-batch-size") || (!has("--world-size") && (has("--tp") || has("--pp")));
    return follows && changes ? concat(words, " --global-batch-size ", train.global_batch_size) : words;
  }

  std::vector<std::string> micro_batches() const {
    std::vector<std::string> changes;
    std::int64_t size = run_.config.train.micro_batch_size;
    while (size > 1) {
      size = size % 2 == 0 ? size / 2 : 1;
      changes.push_back(concat("--micro-batch-size ", size));
    }
    return changes;
  }

  std::vector<std::string> recomputation() const {
    const std::string& now = run_.config.train.recompute;
    std::vector<std::string> changes;
    if (now == "none") changes.emplace_back("--train.recompute selective");
    if (now != "full") changes.emplace_back("--train.recompute full");
    return changes;
  }

  std::vector<std::string> sharding() const {
    const config::OptimizerConfig& optimizer = run_.config.optimizer;
    if (run_.grid.sample_shares() == 1) return {};
    const std::string& now = optimizer.data_parallel_sharding_strategy;
    const bool shares = optimizer.use_distributed_optimizer && now != "no_shard";
    std::vector<std::string> changes;
    if (!shares) changes.emplace_back(concat("--use-distributed-optimizer", now == "optim" ? "" : strategy("optim")));
    if (!shares || now == "optim") changes.push_back(concat("--use-distributed-optimizer", strategy("optim_grads")));
    if (!shares || now != "optim_grads_params")
      changes.push_back(concat("--use-distributed-optimizer", strategy("optim_grads_params")));
    return changes;
  }
  static std::string strategy(const char* name) { return concat(" --data-parallel-sharding-strategy ", name); }

  /// Weights and layers over more ranks: of those there are, then of more.
  std::vector<std::string> splits() const {
    const config::ParallelConfig& parallel = run_.config.parallel;
    const int world = run_.grid.world_size();
    std::vector<std::string> changes;
    const auto add = [&](const char* option, int now, int most) {
      for (int size = 2 * now; size <= most; size *= 2)
        changes.push_back(concat("--", option, " ", size, parallel.dp > 0 ? " --dp 0" : ""));
    };
    add("tp", parallel.tp, world);
    add("pp", parallel.pp, world);
    for (const auto& [option, now] : {std::pair{"tp", parallel.tp}, std::pair{"pp", parallel.pp}})
      for (int size = 2 * now; world / now * size <= room_.most_ranks; size *= 2)
        changes.push_back(concat("--", option, " ", size, " --world-size ", world / now * size));
    return changes;
  }

  std::vector<std::string> types() const {
    const std::string& now = run_.config.train.dtype;
    return now == "fp32" || now == "fp64" ? std::vector<std::string>{"--train.dtype bf16"} : std::vector<std::string>();
  }

  const ResolvedRun& run_;
  const Room& room_;
};

}  // namespace

std::vector<FittingOptions> options_that_fit(const ResolvedRun& run, const Room& room, std::size_t most) {
  if (run.schedule_file) return {};
  const MemoryOptions options(run, room);
  std::vector<FittingOptions> found;
  const auto kinds = options.kinds();
  for (std::size_t i = 0; i < kinds.size() && found.size() < most; ++i)
    if (auto fits = options.first_that_fits(kinds[i])) found.push_back(std::move(*fits));
  // Each kind with all before it, at their least.
  std::string words;
  for (std::size_t i = 0; i < kinds.size() && found.size() < most; ++i) {
    const bool alone = words.empty();
    const auto least = options.least(words, kinds[i]);
    if (!least) continue;
    words = MemoryOptions::joined(words, *least);
    if (alone) continue;  // tried above
    if (auto fits = options.first_that_fits({words})) found.push_back(std::move(*fits));
  }
  return found;
}

std::string options_text(const std::vector<FittingOptions>& options) {
  std::vector<std::string> each;
  for (const FittingOptions& one : options) each.push_back(concat(one.words, " (", size_text(one.bytes), ")"));
  return listed(each);
}

std::string planned_text(const MemoryPlan& memory) {
  std::string parts;
  for (const auto& [name, bytes] :
       {std::pair{"parameters", memory.parameters}, std::pair{"gradients", memory.gradients},
        std::pair{"optimizer state", memory.optimizer_state}, std::pair{"packed weights", memory.packed_weights},
        std::pair{"activations", memory.activations}, std::pair{"logits", memory.logits},
        std::pair{"teacher", memory.teacher}})
    if (bytes > 0) parts += concat(parts.empty() ? "" : ", ", name, " ", size_text(bytes));
  return concat(size_text(memory.total()), " (", parts, ")");
}

std::uint64_t room_where_memory_ran_out(const RanOut& out) {
  const std::int64_t wanted = out.wanted > 0 ? out.wanted : out.planned / 10;
  std::int64_t room = out.planned - wanted;
  if (out.held > 0 || out.free > 0) room = std::min(room, out.held + out.free);
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, room));
}

}  // namespace megatron::plan
