#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/bench/bench.h"
#include "app/bench/timed_steps.h"
#include "app/flags.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/progress.h"
#include "megatron/charts/bar_chart.h"
#include "megatron/config/options.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/ranks.h"
#include "megatron/study/scaling.h"
#include "megatron/train/engine.h"

// The scaling study of the 2019 paper: predicted for hardware that need not be here, or measured in small.
namespace megatron::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUsage =
    "megatron bench scaling [--hardware NAME] [--recipes NAME…] [--svg FILE] [--json]\n"
    "megatron bench scaling --measured [--steps N] [--most-ranks 4] [--svg FILE] [--json]\n\n"
    "Weak scaling (table 1, figure 5), attention heads (table 7) and strong scaling (table 8) of Shoeybi et al. 2019.\n"
    "Predicted by the cost model for a cluster that a file in configs/hardware describes, on dgx2h with what the "
    "paper\n"
    "measured there; with --recipes for these runs instead. Or measured on this machine's cores with small models.";

struct PredictOptions {
  std::string hardware = "dgx2h";
  std::vector<std::string> recipes;
  int world_size = 0;
  std::string dtype = "bf16";

  void visit(auto& v) {
    v("hardware", hardware, "Cluster: a path, or the name of a file in configs/hardware/ without .toml.", "hardware");
    v("recipes", recipes,
      "Recipes to predict: paths, or names of files in configs/ without .toml. One that leaves its vocabulary to a "
      "tokenizer has GPT-2's, 50257.",
      "recipes");
    v("world_size", world_size, "Ranks per recipe; 0: the recipe's.", "world-size");
    v("dtype", dtype, "Data type of each recipe's parameters and activations.", "dtype",
      config::Choices({"fp32", "fp64", "bf16", "fp16"}));
  }
};

struct MeasureOptions {
  bool measured = false;
  int most_ranks = 4;
  std::int64_t steps = 3, warmup = 1, rounds = 2, width = 256, seq_length = 128, samples = 4;

  void visit(auto& v) {
    v("measured", measured, "Train small models on this machine, one thread per rank.", "measured");
    v("most_ranks", most_ranks, "Maximum number of ranks: 1, 2 or 4.", "most-ranks");
    v("steps", steps, "Timed steps per round.", "steps");
    v("warmup", warmup, "Warm-up steps before them.", "warmup");
    v("rounds", rounds, "Rounds over all runs, so that a busy machine slows each of them.", "rounds");
    v("width", width, "Hidden size of the model on one rank, a multiple of 16; others are 5/4 and 3/2 of it.", "width");
    v("seq_length", seq_length, "Tokens per sample.", "seq-length");
    v("samples", samples, "Samples per step and model copy.", "samples");
  }
};

struct OutputOptions {
  bool json = false;
  std::string svg;

  void visit(auto& v) {
    v("json", json, "Print one JSON object on stdout instead of tables.", "json");
    v("svg", svg, "SVG file to draw the figures into.", "svg");
  }
};

struct Options {
  PredictOptions predict;
  MeasureOptions measure;
  OutputOptions output;

  void visit(auto& v) {
    v("predict", predict, "Prediction by the cost model.");
    v("measure", measure, "Measurement on this machine.");
    v("output", output, "What is written.");
  }
};

constexpr const char* kDoesNotFit =
    "\nWhat does not fit takes no time: give it more ranks (--world-size, or parallel.tp and pp in the recipe), "
    "train.recompute\nfull, or optimizer.use_distributed_optimizer.\n";

Json cost_json(const plan::StepCost& cost) {
  Json parts;
  for (const auto& [name, seconds] : cost.parts.named()) parts[name] = 1e3 * seconds;
  return {{"step_ms", 1e3 * cost.step_s},          {"parts_ms", parts},
          {"computed_flops", cost.computed_flops}, {"model_flops", cost.model_flops},
          {"rank_tflops", cost.rank_tflops},       {"utilization", cost.utilization}};
}

Json fit_json(const study::Fit& memory) {
  return {{"memory_bytes", memory.bytes}, {"capacity_bytes", memory.capacity}, {"fits", memory.fits()}};
}

Json row_json(const study::PredictedRow& row, bool compare) {
  static constexpr std::array<const char*, 4> kUnits = {"TFLOP/s per rank", "percent", "times", "days"};
  const study::PaperRow& paper = row.paper;
  Json json{{"table", paper.table},
            {"run", paper.label},
            {"num_layers", paper.num_layers},
            {"hidden_size", paper.hidden},
            {"num_attention_heads", paper.heads},
            {"tp", paper.tp},
            {"dp", paper.dp},
            {"unit", kUnits[static_cast<std::size_t>(paper.figure)]}};
  if (compare) json["published"] = paper.published;
  json.update(fit_json(row.memory));
  if (!row.memory.fits()) return json;
  json["predicted"] = row.predicted;
  if (compare) {
    json["deviation"] = row.deviation();
    json["relative_deviation"] = row.deviation() / paper.published;
    if (row.has_goal()) json["meets_goal"] = row.meets_goal();
  }
  json.update(cost_json(row.cost));
  return json;
}

int predict_study(const Options& options, const plan::Hardware& hardware) {
  const bool compare = hardware.name == study::kPaperHardware;
  const std::vector<study::PredictedRow> rows = study::predict_paper(hardware);
  if (!options.output.svg.empty()) write_file(options.output.svg, study::scaling_svg(rows, hardware, compare));
  if (options.output.json) {
    Json json{{"hardware", hardware.name}};
    if (compare) json["meets_goals"] = study::meets_goals(rows);
    for (const study::PredictedRow& row : rows) json["rows"].push_back(row_json(row, compare));
    print_json(json);
  } else {
    print_text(study::scaling_markdown(rows, compare));
  }
  return kDone;
}

struct PredictedRecipe {
  std::string name;
  plan::ResolvedRun run;
  plan::StepCost cost;
  study::Fit memory;
};

PredictedRecipe predict_recipe(const std::string& name, const PredictOptions& options, const plan::Hardware& hardware) {
  config::RunConfig config;
  config::load_toml(config, config_file(name, "configs", "--recipes"));
  config.train.dtype = options.dtype;
  config.parallel.device = "cuda";
  if (options.world_size > 0) {
    config.parallel.world_size = options.world_size;
    config.parallel.dp = 0;
  }
  if (config.model.vocab_size == 0) config.model.vocab_size = 50257;  // a recipe that leaves it to its tokenizer
  plan::ResolvedRun run = plan::resolve(config);
  const plan::StepCost cost = plan::step_cost(run, hardware);
  const study::Fit memory = study::fit_of(run, hardware);
  return {name, std::move(run), cost, memory};
}

int predict_recipes(const Options& options, const plan::Hardware& hardware) {
  std::vector<PredictedRecipe> recipes;
  for (const std::string& name : options.predict.recipes)
    recipes.push_back(predict_recipe(name, options.predict, hardware));
  Json json{{"hardware", hardware.name}, {"dtype", options.predict.dtype}};
  std::string table =
      "| recipe | ranks | tp | pp | dp | memory of a rank | step s | tokens/s | TFLOP/s per rank | of the peak |\n"
      "|--|--|--|--|--|--|--|--|--|--|\n";
  std::vector<std::pair<std::string, plan::StepCost>> steps;
  charts::BarGroup bars{"model operations, share of the peak", {}};
  for (const auto& [name, run, cost, memory] : recipes) {
    const int tp = run.grid.size(plan::Axis::Tp), pp = run.grid.size(plan::Axis::Pp), dp = run.grid.sample_shares();
    const double tokens_per_s =
        static_cast<double>(run.config.train.global_batch_size * run.config.data.seq_length) / cost.step_s;
    Json row{{"recipe", name}, {"ranks", run.grid.world_size()}, {"tp", tp}, {"pp", pp}, {"dp", dp}};
    row["schedule"] = plan::schedule_text(run);
    row.update(fit_json(memory));
    const std::string ranks = concat("| ", name, " | ", run.grid.world_size(), " | ", tp, " | ", pp, " | ", dp, " | ");
    if (!memory.fits()) {
      table += concat(ranks, "does not fit: ", memory.text(), " | | | | |\n");
      bars.clusters.push_back({name, {0}, {"no room"}});
      json["recipes"].push_back(std::move(row));
      continue;
    }
    row["tokens_per_s"] = tokens_per_s;
    row.update(cost_json(cost));
    json["recipes"].push_back(std::move(row));
    table += formatted("{}{} | {:.3f} | {:.0f} | {:.1f} | {:.1f} % |\n", ranks,
                       human_bytes(static_cast<double>(memory.bytes)), cost.step_s, tokens_per_s, cost.rank_tflops,
                       100 * cost.utilization);
    steps.emplace_back(name, cost);
    bars.clusters.push_back({name, {100 * cost.utilization}, {concat(std::round(100 * cost.utilization), " %")}});
  }
  if (!options.output.svg.empty())
    write_file(options.output.svg, charts::draw_bars("Predicted on " + hardware.name, {"predicted"}, {bars}));
  if (options.output.json)
    print_json(json);
  else
    print_text(table + (steps.empty() ? "" : "\n" + study::parts_markdown(steps)) +
               (steps.size() < recipes.size() ? kDoesNotFit : ""));
  return kDone;
}

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

plan::ResolvedRun resolve_small(const SmallRun& small, const MeasureOptions& options) {
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
std::vector<double> time_runs(const std::vector<plan::ResolvedRun>& runs, const MeasureOptions& options) {
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

void check(const MeasureOptions& options) {
  const auto need = [](bool ok, const std::string& rule, std::int64_t got) {
    if (!ok)
      throw ConfigError(rule_got_fix(rule, concat(got), concat("leave ", rule.substr(0, rule.find(' ')), " out")));
  };
  need(options.most_ranks == 1 || options.most_ranks == 2 || options.most_ranks == 4, "--most-ranks must be 1, 2 or 4.",
       options.most_ranks);
  need(options.steps >= 1 && options.steps <= 10000, "--steps must be from 1 to 10000.", options.steps);
  need(options.warmup >= 0 && options.warmup <= 10000, "--warmup must be from 0 to 10000.", options.warmup);
  need(options.rounds >= 1 && options.rounds <= 1000, "--rounds must be from 1 to 1000.", options.rounds);
  need(options.width >= 16 && options.width <= 16384 && options.width % 16 == 0,
       "--width must be a multiple of 16, from 16 to 16384.", options.width);
  need(options.samples >= 1 && options.samples <= 1024, "--samples must be from 1 to 1024.", options.samples);
}

int measure(const Options& options) {
  check(options.measure);
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

/// Throws ConfigError for options of another of the three figures than the one that is asked for.
void check_read(const Options& options) {
  const PredictOptions& predict = options.predict;
  const MeasureOptions& measure = options.measure;
  const PredictOptions usual;
  const MeasureOptions small;
  if (measure.measured) {
    for (const auto& [flag, set] : {std::pair{"--recipes", !predict.recipes.empty()},
                                    {"--hardware", predict.hardware != usual.hardware},
                                    {"--world-size", predict.world_size != usual.world_size},
                                    {"--dtype", predict.dtype != usual.dtype}})
      if (set)
        throw ConfigError(rule_got_fix(concat("--measured has runs of its own: ", flag, " is for predictions."),
                                       concat("--measured and ", flag), "leave one of the two out"));
    return;
  }
  refuse_without(predict.world_size != usual.world_size && predict.recipes.empty(), "--world-size", "--recipes");
  refuse_without(predict.dtype != usual.dtype && predict.recipes.empty(), "--dtype", "--recipes");
  for (const auto& [flag, set] : {std::pair{"--most-ranks", measure.most_ranks != small.most_ranks},
                                  {"--steps", measure.steps != small.steps},
                                  {"--warmup", measure.warmup != small.warmup},
                                  {"--rounds", measure.rounds != small.rounds},
                                  {"--width", measure.width != small.width},
                                  {"--seq-length", measure.seq_length != small.seq_length},
                                  {"--samples", measure.samples != small.samples}})
    refuse_without(set, flag, "--measured");
  if (predict.world_size < 0)
    throw ConfigError(rule_got_fix("--world-size must be 0 or above.", concat(predict.world_size),
                                   "--world-size 0, each recipe's own"));
}

}  // namespace

int bench_scaling(const Args& args) {
  Options options;
  no_words(config::parse_command_line(options, args, kUsage));
  check_read(options);
  if (!options.output.svg.empty() && !options.output.svg.ends_with(".svg"))
    throw ConfigError(rule_got_fix("--svg takes a file that ends in .svg.", options.output.svg, "--svg scaling.svg"));
  if (!options.output.svg.empty()) make_folder(std::filesystem::path(options.output.svg).parent_path());
  if (options.measure.measured) return measure(options);
  constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 20;
  const std::string file = config_file(options.predict.hardware, "configs/hardware", "--hardware");
  const plan::Hardware hardware = plan::parse_hardware(read_file(file, kMaxFile), file);
  return options.predict.recipes.empty() ? predict_study(options, hardware) : predict_recipes(options, hardware);
}

}  // namespace megatron::app
