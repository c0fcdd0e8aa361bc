#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/bench/bench.h"
#include "app/bench/scaling_options.h"
#include "app/bench/timed_steps.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/progress.h"
#include "megatron/charts/bar_chart.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/ranks.h"
#include "megatron/study/scaling.h"
#include "megatron/train/engine.h"

// The scaling study of the 2019 paper, measured in small.
namespace megatron::app {
namespace {

using Json = nlohmann::ordered_json;

/// A small run: the numbers of layers and columns keep the parameters of a rank the same over 1, 2 and 4.
struct SmallRun {
  const char* table;
  std::string label;
  std::int64_t num_layers, hidden, heads;
  int tp = 1, dp = 1;
  study::Figure figure = study::Figure::Efficiency;

  int ranks() const { return tp * dp; }
};

/// `width`: columns on one rank.
std::vector<SmallRun> small_runs(int most_ranks, std::int64_t width) {
  using study::Figure;
  const std::int64_t wider = width / 4 * 5, widest = width / 2 * 3;
  const std::vector<SmallRun> all = {
      {"Weak, tensor-parallel", "1 rank", 4, width, 8},
      {"Weak, tensor-parallel", "2 ranks", 5, wider, 10, 2},
      {"Weak, tensor-parallel", "4 ranks", 7, widest, 12, 4},
      {"Weak, data-parallel", "2 ranks", 4, width, 8, 1, 2},
      {"Weak, data-parallel", "4 ranks", 4, width, 8, 1, 4},
      {"Heads, tensor-parallel", "4 heads, 4 ranks", 7, widest, 4, 4},
      {"Heads, tensor-parallel", "8 heads, 4 ranks", 7, widest, 8, 4},
      {"Heads, tensor-parallel", "12 heads, 4 ranks", 7, widest, 12, 4},
      {"Strong", "2 ranks", 4, width, 8, 2, 1, study::Figure::Speedup},
      {"Strong", "4 ranks", 4, width, 8, 4, 1, study::Figure::Speedup},
  };
  std::vector<SmallRun> runs;
  std::copy_if(all.begin(), all.end(), std::back_inserter(runs),
               [&](const SmallRun& run) { return run.ranks() <= most_ranks; });
  return runs;
}

plan::ResolvedRun resolve_small(const SmallRun& small, const ScalingMeasureOptions& options) {
  config::RunConfig config;
  config.model.num_layers = small.num_layers;
  config.model.hidden_size = small.hidden;
  config.model.num_attention_heads = small.heads;
  config.model.vocab_size = 1024;
  config.model.hidden_dropout = config.model.attention_dropout = 0;
  config.parallel.tp = small.tp;
  config.parallel.world_size = small.ranks();
  config.parallel.launch = "threads";
  config.parallel.threads_per_rank = 1;
  config.data.seq_length = options.seq_length;
  config.train.micro_batch_size = options.samples;
  config.train.global_batch_size = options.samples * small.dp;
  config.train.train_iters = options.warmup + options.steps;
  config.train.recompute = "full";
  return plan::resolve(config, {.flags = {{"data.seq_length", "seq-length"}, {"train.micro_batch_size", "samples"}}});
}

/// Seconds of each run's median step. Rounds go over all runs.
std::vector<double> time_runs(const std::vector<plan::ResolvedRun>& runs, const ScalingMeasureOptions& options) {
  std::vector<std::vector<double>> seconds(runs.size());
  const std::int64_t steps = options.warmup + options.steps;
  const auto count = static_cast<std::int64_t>(runs.size());
  Progress progress("bench scaling", "steps", options.rounds * count * steps);
  for (std::int64_t round = 0; round < options.rounds; ++round)
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::int64_t before = (round * count + static_cast<std::int64_t>(i)) * steps;
      run::run_on_ranks(runs[i], std::nullopt, [&](comm::Group world, at::Device device) {
        const bool first = world.rank() == 0;
        train::Engine engine(runs[i], std::move(world), device);
        const TimedSteps timed = timed_steps(engine, runs[i], options.warmup, options.steps, [&](std::int64_t step) {
          if (first) progress.update(before + step + 1);
        });
        if (first) seconds[i].insert(seconds[i].end(), timed.step_s.begin(), timed.step_s.end());
        return kDone;
      });
    }
  std::vector<double> medians;
  for (std::vector<double>& each : seconds) medians.push_back(median(std::move(each)));
  return medians;
}

constexpr const char* kMeaning =
    "Efficiency: operations per second and core in use against those of 1 rank; 1 thread per rank, so that of n ranks "
    "min(n, cores) cores are in use. Where ranks are more than cores they take turns, and what is lost is "
    "communication, smaller products and the turns themselves. Speed-up: against the time of 1 rank.";

int measure(const BenchScalingOptions& options) {
  const std::vector<SmallRun> small = small_runs(options.measure.most_ranks, options.measure.width);
  std::vector<plan::ResolvedRun> runs;
  for (const SmallRun& run : small) runs.push_back(resolve_small(run, options.measure));
  kernels::install_caching_allocator();
  for (const plan::ResolvedRun& run : runs)
    run::check_memory(run, std::nullopt, plan::Holding::Training, {.fix = "a smaller --seq-length or --samples"});
  const std::vector<double> seconds = time_runs(runs, options.measure);
  const int cores = usable_cores();
  const auto flops_per_core = [&](std::size_t i) {
    const double flops =
        plan::training_flops(runs[i].shape, runs[i].config.train.global_batch_size, runs[i].config.data.seq_length);
    return flops / seconds[i] / std::min(cores, small[i].ranks());
  };
  Json json{{"cores", cores}, {"meaning", kMeaning}};
  std::string table = "| study | run | parameters per rank | step | efficiency or speed-up |\n|--|--|--|--|--|\n";
  std::vector<charts::BarGroup> groups;
  for (std::size_t i = 0; i < small.size(); ++i) {
    const bool speedup = small[i].figure == study::Figure::Speedup;
    const double figure = speedup ? seconds[0] / seconds[i] : 100 * (flops_per_core(i) / flops_per_core(0));
    const std::int64_t parameters = plan::parameter_count(runs[i].shape) / small[i].tp;
    json["rows"].push_back({{"study", small[i].table},
                            {"run", small[i].label},
                            {"num_layers", small[i].num_layers},
                            {"hidden_size", small[i].hidden},
                            {"num_attention_heads", small[i].heads},
                            {"tp", small[i].tp},
                            {"dp", small[i].dp},
                            {"parameters_a_rank", parameters},
                            {"step_ms", 1e3 * seconds[i]},
                            {"unit", speedup ? "times" : "percent"},
                            {"measured", figure}});
    const std::string text = study::figure_text(small[i].figure, figure);
    table += formatted("| {} | {} | {} | {:.1f} ms | {} |\n", small[i].table, small[i].label,
                       human_count(static_cast<double>(parameters)), 1e3 * seconds[i], text);
    if (groups.empty() || groups.back().heading != small[i].table) groups.push_back({small[i].table, {}});
    groups.back().clusters.push_back({small[i].label, {figure}, {text}});
  }
  if (!options.output.svg.empty())
    write_file(options.output.svg, charts::draw_bars(concat("Measured on ", cores, " cores"), {"measured"}, groups));
  if (options.output.json)
    print_json(json);
  else
    print("{}\n{} cores. {}\n", table, cores, kMeaning);
  return kDone;
}

}  // namespace

int bench_scaling(const Args& args) {
  const BenchScalingOptions options = bench_scaling_options(args);
  if (!options.measure.measured)
    throw ConfigError(rule_got_fix("Predictions are made by the program without libtorch.", "megatron-torch",
                                   "megatron bench scaling, or --measured"));
  make_chart_folder(options.output);
  return measure(options);
}

}  // namespace megatron::app
