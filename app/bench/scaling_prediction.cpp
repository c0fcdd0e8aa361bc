#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/bench/bench.h"
#include "app/bench/scaling_options.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/progress.h"
#include "megatron/charts/bar_chart.h"
#include "megatron/plan/mend.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/study/scaling.h"

// The scaling study of the 2019 paper, predicted for hardware that need not be here.
namespace megatron::app {
namespace {

using Json = nlohmann::ordered_json;

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

int predict_study(const BenchScalingOptions& options, const plan::Hardware& hardware) {
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

/// What is wrong with one of the recipes, by its name; with `others` a fix may not suit those.
std::string of_recipe(const std::string& message, const std::string& name, bool others) {
  std::string text;
  for (auto& [rule, got, fix] : plan::violations_in(message)) {
    constexpr std::string_view kDtype = "--train.dtype";  // of step_cost()
    if (const std::size_t at = fix.find(kDtype); at != std::string::npos) fix.replace(at, kDtype.size(), "--dtype");
    if (others && fix.starts_with("--"))
      fix = concat("leave ", name, " out of --recipes, or predict it alone with ", fix);
    text += (text.empty() ? "" : "\n") + rule_got_fix(concat(name, ": ", rule), got, fix);
  }
  return text;
}

PredictedRecipe predict_recipe(const std::string& name, const ScalingPredictOptions& options,
                               const plan::Hardware& hardware) {
  config::RunConfig config;
  config::load_toml(config, config_file(name, "configs", "--recipes"));
  config.train.dtype = options.dtype;
  config.parallel.device = hardware.device.empty() ? "cuda" : hardware.device;
  if (options.world_size > 0) {
    config.parallel.world_size = options.world_size;
    config.parallel.dp = 0;
  }
  if (config.model.vocab_size == 0) config.model.vocab_size = 50257;  // a recipe that leaves it to its tokenizer
  const auto keeps_dp = [given = config.parallel](config::RunConfig& changed) {
    if (changed.parallel.world_size != given.world_size) changed.parallel.dp = 0;
  };
  try {
    plan::ResolvedRun run =
        plan::resolve(config, {.flags = {{"train.dtype", "dtype"}, {"parallel.world_size", "world-size"}},
                               .otherwise = concat("leave ", name, " out of --recipes, or change its file"),
                               .complete = keeps_dp});
    const plan::StepCost cost = plan::step_cost(run, hardware);
    const study::Fit memory = study::fit_of(run, hardware);
    return {name, std::move(run), cost, memory};
  } catch (const ConfigError& error) {
    throw ConfigError(of_recipe(error.what(), name, options.recipes.size() > 1));
  }
}

int predict_recipes(const BenchScalingOptions& options, const plan::Hardware& hardware) {
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

}  // namespace

int bench_scaling_prediction(const BenchScalingOptions& options) {
  make_chart_folder(options.output);
  constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 20;
  const std::string file = config_file(options.predict.hardware, "configs/hardware", "--hardware");
  const plan::Hardware hardware = plan::parse_hardware(read_file(file, kMaxFile), file);
  return options.predict.recipes.empty() ? predict_study(options, hardware) : predict_recipes(options, hardware);
}

}  // namespace megatron::app
