#include "app/bench/pipeline_options.h"

#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/ranks/launched_rank.h"
#include "megatron/recipe/resolve.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron bench pipeline RECIPE.toml [--schedules 1f1b zb-h1] [--steps N] [--rounds N] [OPTION]…\n\n"
    "Predicts the time of each schedule's step on this machine and then measures it: the mean times of each stage's\n"
    "operations in a first set of runs, on synthetic data, go into a simulation, whose result is printed before the\n"
    "runs start that it is compared with. Compares the schedules with the first of them.";

std::vector<plan::ResolvedRun> resolve_all(const BenchPipelineOptions& options,
                                           const std::optional<LaunchedRank>& place) {
  constexpr std::int64_t kMax = 1'000'000;
  if (options.steps < 1 || options.steps > kMax || options.warmup < 0 || options.warmup > kMax || options.rounds < 1 ||
      options.schedules.empty())
    throw ConfigError(rule_got_fix(
        "--steps and --rounds must be at least 1, --warmup 0, steps at most 1000000, and --schedules name one.",
        concat(options.steps, ", ", options.rounds, ", ", options.warmup, ", ", options.schedules.size(), " schedules"),
        "--steps 1 --warmup 0 --rounds 1 --schedules 1f1b"));
  std::vector<plan::ResolvedRun> runs;
  for (const std::string& name : options.schedules) {
    if (!schedule::is_name(name) && !recipe::read_schedule_file(name))
      throw ConfigError(rule_got_fix("--schedules must name pipeline schedules, or files of them.", "'" + name + "'",
                                     "--schedules 1f1b zb-h1 (the default)"));
    const auto complete = [&](config::RunConfig& config) {
      config.parallel.pp_schedule = name;
      for (const schedule::ScheduleInfo& info : schedule::schedules())
        if (name == info.name && info.min_chunks == info.max_chunks) config.parallel.vpp = info.min_chunks;
      config.log.trace = "measured.json";  // the first pipeline measures its steps; nothing is written here
      config.train.train_iters = options.warmup + options.steps;
      config.distill = {};  // the steps that are measured have no teacher
    };
    config::RunConfig config = options.run;
    complete(config);
    const plan::Facts facts{.launched_world_size = place ? place->world_size : 0, .complete = complete};
    runs.push_back(recipe::resolve_with_tokenizer(config, facts).run);
  }
  return runs;
}

}  // namespace

BenchPipelineCommand bench_pipeline_command(const Args& args) {
  BenchPipelineCommand command;
  const auto place = place_from(process_environment());
  config::parse_recipe_command(command.options, &BenchPipelineOptions::run, args, kUsage,
                               [&] { command.runs = resolve_all(command.options, place); });
  return command;
}

}  // namespace megatron::app
