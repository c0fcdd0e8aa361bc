#include "megatron/supervise/layouts.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/plan/stages.h"

namespace megatron::supervise {
namespace {

/// How the model is split.
struct ModelSplit {
  int tp = 1, pp = 1, cp = 1;
};

/// Those that `ranks` can be shared by, the likest to `now` first: as many slices in all, then fewer, then more; of
/// these the same tp, then as many ranks that share a sequence, or a divisor of them.
std::vector<ModelSplit> splits_of(int ranks, const ModelSplit& now) {
  std::vector<ModelSplit> all;
  for (int tp = 1; tp <= ranks; ++tp)
    for (int pp = 1; ranks % tp == 0 && pp <= ranks / tp; ++pp)
      for (int cp = 1; ranks / tp % pp == 0 && cp <= now.cp; ++cp)
        if (now.cp % cp == 0 && ranks / tp / pp % cp == 0) all.push_back({tp, pp, cp});
  const int slices = now.tp * now.pp;
  const auto distance = [&](const ModelSplit& split) {
    const int own = split.tp * split.pp;
    return std::tuple(own > slices, std::abs(own - slices), std::abs(split.tp - now.tp), now.cp - split.cp);
  };
  std::ranges::stable_sort(all, {}, distance);
  return all;
}

bool is_unequal(const config::ParallelConfig& parallel) {
  return !parallel.pp_layout.empty() || parallel.layers_per_virtual_stage > 0 || parallel.first_stage_layers > 0 ||
         parallel.last_stage_layers > 0 || parallel.account_for_embedding || parallel.account_for_loss ||
         parallel.standalone_embedding_stage;
}

/// For another number of stages than the options are about.
void balance_stages(config::ParallelConfig& parallel) {
  plan::reset_stages(parallel);
  parallel.pp_layout = "balanced";
}

config::RunConfig with_split(config::RunConfig config, int ranks, const ModelSplit& split) {
  config::ParallelConfig& parallel = config.parallel;
  if (split.pp != parallel.pp) {
    parallel.vpp = 1;  // chunks of other stages
    if (is_unequal(parallel)) balance_stages(parallel);
  }
  parallel.world_size = ranks;
  parallel.dp = 0;  // what is left
  parallel.tp = split.tp;
  parallel.cp = split.cp;
  parallel.pp = split.pp;
  parallel.sp = parallel.sp && split.tp > 1;
  return config;
}

std::vector<std::string> words_of(const config::RunConfig& config) {
  const config::ParallelConfig& parallel = config.parallel;
  std::vector<std::string> words;
  const auto add = [&](const char* option, const auto& value) {
    words.emplace_back(option);
    words.push_back(concat(value));
  };
  add("--parallel.world_size", parallel.world_size);
  add("--parallel.tp", parallel.tp);
  add("--parallel.cp", parallel.cp);
  add("--parallel.pp", parallel.pp);
  add("--parallel.vpp", parallel.vpp);
  add("--parallel.dp", parallel.dp);
  add("--parallel.sp", parallel.sp);
  add("--train.global_batch_size", config.train.global_batch_size);
  if (parallel.pp_layout != "balanced") return words;
  add("--parallel.pp_layout", parallel.pp_layout);
  add("--parallel.layers_per_virtual_stage", parallel.layers_per_virtual_stage);
  add("--parallel.first_stage_layers", parallel.first_stage_layers);
  add("--parallel.last_stage_layers", parallel.last_stage_layers);
  add("--parallel.account_for_embedding", parallel.account_for_embedding);
  add("--parallel.account_for_loss", parallel.account_for_loss);
  add("--parallel.standalone_embedding_stage", parallel.standalone_embedding_stage);
  return words;
}

}  // namespace

std::optional<SmallerLayout> smaller_layout(const config::RunConfig& config, int ranks, int min_ranks,
                                            const Allowed& allowed) {
  for (int fewer = ranks - 1; fewer >= std::max(1, min_ranks); --fewer)
    for (const ModelSplit& split : splits_of(fewer, {config.parallel.tp, config.parallel.pp, config.parallel.cp})) {
      config::RunConfig smaller = with_split(config, fewer, split);
      if (allowed(smaller)) return SmallerLayout{smaller, fewer, words_of(smaller)};
    }
  return std::nullopt;
}

}  // namespace megatron::supervise
