#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/jobs.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/plan/counts.h"
#include "megatron/plan/rules.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

using nlohmann::json;
using plan::Axis;

constexpr const char* kUsage =
    "megatron plan RECIPE.toml [--world-size N] [--json] [OPTION]…\n\n"
    "What a run of this recipe would be: groups of ranks, memory, arithmetic. Nothing is run and nothing is written.";

struct PlanOptions {
  config::RunConfig run;
  bool as_json = false;
  void visit(auto& v) {
    v("json", as_json, "Print one JSON object.");
    run.visit(v);
  }
};

const std::vector<std::pair<const char*, std::vector<Axis>>> kGroups = {
    {"tensor", {Axis::Tp}}, {"pipeline", {Axis::Pp}}, {"data", {Axis::Dp}}, {"model", {Axis::Tp, Axis::Pp}}};

json groups_of(const plan::RankGrid& grid) {
  json groups = json::object();
  for (const auto& [name, axes] : kGroups) groups[name] = grid.groups(axes);
  groups["embedding"] = grid.embedding_groups();
  groups["position_embedding"] = grid.position_embedding_groups();
  return groups;
}

/// Bytes by kind, one entry a rank; they depend on the rank's place in its tensor-parallel group alone.
json memory_of(const plan::ResolvedRun& run) {
  std::vector<plan::MemoryPlan> by_tp_rank;
  for (int tp_rank = 0; tp_rank < run.grid.size(Axis::Tp); ++tp_rank)
    by_tp_rank.push_back(plan::memory_plan(run.config, run.shape, tp_rank));
  json memory;
  for (int rank = 0; rank < run.grid.world_size(); ++rank) {
    const auto tp_rank = static_cast<std::size_t>(run.grid.coord_of(rank)[static_cast<std::size_t>(Axis::Tp)]);
    const plan::MemoryPlan& plan = by_tp_rank[tp_rank];
    memory["parameters"].push_back(plan.parameters);
    memory["gradients"].push_back(plan.gradients);
    memory["optimizer_state"].push_back(plan.optimizer_state);
    memory["activations"].push_back(plan.activations);
    memory["logits"].push_back(plan.logits);
    memory["total"].push_back(plan.total());
  }
  return memory;
}

json report(const plan::ResolvedRun& run) {
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
          {"groups", groups_of(run.grid)},
          {"stages", stages},
          {"schedule",
           {{"makespan", 3 * run.microbatches_per_step}, {"bubble", 0.0}, {"peak_activations", json::array({1})}}},
          {"memory_bytes", memory_of(run)},
          {"flops_per_step", plan::training_flops(run.shape, batch, config.data.seq_length)},
          {"parameters", plan::parameter_count(run.shape)},
          {"padded_vocab", run.shape.padded_vocab},
          {"global_batch_size", batch},
          {"microbatches_per_step", run.microbatches_per_step},
          {"train_samples", run.train_samples},
          {"train_tokens", run.train_samples * config.data.seq_length}};
}

std::string text_of(const json& groups) {
  constexpr std::size_t kShown = 4;
  std::string out;
  for (std::size_t i = 0; i < std::min(kShown, groups.size()); ++i) {
    const json& ranks = groups[i];
    out += "[";
    for (std::size_t k = 0; k < std::min(2 * kShown, ranks.size()); ++k)
      out += concat(k > 0 ? " " : "", ranks[k].get<int>());
    out += ranks.size() > 2 * kShown ? " …] " : "] ";
  }
  return out + (groups.size() > kShown ? "…" : "");
}

void print_human(const json& all, const plan::ResolvedRun& run) {
  const plan::GptShape& shape = run.shape;
  const config::RunConfig& config = run.config;
  const auto row = [](const std::string& name, const std::string& value) {
    std::printf("  %-20s %s\n", name.c_str(), value.c_str());
  };
  std::printf("model\n");
  row("parameters", concat(human_count(all["parameters"]), " (", all["parameters"].get<std::int64_t>(), ")"));
  row("shape", concat(shape.num_layers, " layers, width ", shape.hidden, ", ", shape.num_heads, " heads, MLP ",
                      shape.ffn_hidden, ", ", shape.max_positions, " positions"));
  row("vocabulary", concat(shape.vocab, " tokens in ", shape.padded_vocab, " rows"));
  std::printf("step\n");
  row("batch", concat(config.train.global_batch_size, " samples of ", config.data.seq_length, " tokens, ",
                      run.microbatches_per_step, " microbatches of ", config.train.micro_batch_size, " on each of dp ",
                      run.grid.size(Axis::Dp)));
  row("arithmetic", human_count(all["flops_per_step"]) + "FLOP");
  row("run", concat(config.train.train_iters, " steps, ", human_count(all["train_samples"]), " samples, ",
                    human_count(all["train_tokens"]), " tokens"));
  std::printf("ranks: %d = tp %d x dp %d\n", run.grid.world_size(), run.grid.size(Axis::Tp), run.grid.size(Axis::Dp));
  for (const auto& [name, axes] : kGroups)
    row(name,
        concat(all["groups"][name].size(), " x ", all["groups"][name][0].size(), "  ", text_of(all["groups"][name])));
  std::printf("memory of a rank (the largest)\n");
  for (const char* kind : {"parameters", "gradients", "optimizer_state", "activations", "logits", "total"}) {
    std::int64_t most = 0;
    for (const auto& bytes : all["memory_bytes"][kind]) most = std::max(most, bytes.get<std::int64_t>());
    row(kind, human_bytes(static_cast<double>(most)));
  }
}

}  // namespace

int plan(const Args& args) {
  PlanOptions options;
  config::parse_recipe_command(options, &PlanOptions::run, args, kUsage);
  plan::Facts facts;
  if (!options.run.data.tokenizer.empty())
    facts.tokenizer_vocab = text::Tokenizer::load(options.run.data.tokenizer).vocab_size();
  const plan::ResolvedRun run = plan::resolve(options.run, facts);
  const json all = report(run);
  if (options.as_json)
    std::printf("%s\n", all.dump().c_str());
  else
    print_human(all, run);
  return kDone;
}

}  // namespace megatron::app
