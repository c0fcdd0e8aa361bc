#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "app/flags.h"
#include "app/jobs.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/outputs.h"
#include "megatron/charts/line_chart.h"
#include "megatron/config/options.h"
#include "megatron/supervise/expert_loads.h"

// Curves of runs from their metrics.jsonl, in one picture.
namespace megatron::app {
namespace {

using Json = nlohmann::ordered_json;
using supervise::ExpertLoads;

constexpr const char* kUsage =
    "megatron plot RUN… [--output curves.svg] [--field loss] [--smooth N] [--json]\n\n"
    "Draws what up to 8 runs wrote to metrics.jsonl, and prints where each began, was least and ended. RUN: the folder "
    "of a\nrun (train.out), or a file of such lines.";

constexpr std::size_t kMaxCurves = 8;

struct Options {
  std::string output, field = "loss", x = "iteration", title;
  int smooth = 1;
  bool json = false;

  void visit(auto& v) {
    v("output", output, "SVG file to write; empty: only print the table.", "output");
    v("field", field,
      "Metric to draw: loss, valid_loss, lm_loss, grad_norm, tokens_per_s, or another of metrics.jsonl; "
      "expert_loads: a heat map.",
      "field");
    v("x", x, "Horizontal axis.", "x", config::Choices({"iteration", "consumed_samples"}));
    v("smooth", smooth, "Moving average over so many points.", "smooth");
    v("title", title, "Title of the picture; empty: the field.", "title");
    v("json", json, "Print one JSON object on stdout instead of the table.", "json");
  }
};

struct LoggedRun {
  charts::Curve curve;
  std::int64_t lines_cut = 0;  ///< lines that are no whole object: a crash's, or one being written
};

double finite_or_nan(const Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

std::filesystem::path metrics_of(const std::string& word) {
  const std::filesystem::path path(word);
  return std::filesystem::is_directory(path) ? path / "metrics.jsonl" : path;
}

LoggedRun read_run(const std::filesystem::path& path, const Options& options) {
  const MappedFile file(path);
  LoggedRun run;
  // A folder's name tells runs apart; "." has none.
  const auto place = std::filesystem::absolute(path).lexically_normal();
  run.curve.name = (path.filename() == "metrics.jsonl" ? place.parent_path() : place).filename().string();
  std::istringstream lines{std::string(file.text())};
  for (std::string line; std::getline(lines, line);) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) {
      run.lines_cut += !line.empty();
      continue;
    }
    const auto x = object.find(options.x), y = object.find(options.field);
    if (x == object.end() || y == object.end() || !x->is_number()) continue;
    // NaN and infinity are null in the file.
    run.curve.points.emplace_back(x->get<double>(), finite_or_nan(*y));
  }
  const auto finite = [](const auto& point) { return std::isfinite(point.second); };
  if (!std::any_of(run.curve.points.begin(), run.curve.points.end(), finite))
    throw ConfigError(
        rule_got_fix(concat(path.string(), ": lines must have numbers called ", options.x, " and ", options.field, "."),
                     "none", "another --field or --x, or the folder of a run that has begun"));
  std::stable_sort(run.curve.points.begin(), run.curve.points.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return run;
}

/// Where a run began, was least and ended.
Json summary(const LoggedRun& run) {
  Json json{{"run", run.curve.name}, {"points", run.curve.points.size()}};
  std::int64_t gaps = 0;
  double least = std::numeric_limits<double>::infinity(), least_x = 0;
  for (const auto& [x, y] : run.curve.points) {
    gaps += !std::isfinite(y);
    if (!(y < least)) continue;
    least = y;
    least_x = x;
  }
  json["first"] = run.curve.points.front().second;
  json["least"] = least;
  json["least_at"] = least_x;
  json["last"] = run.curve.points.back().second;
  json["last_at"] = run.curve.points.back().first;
  json["not_finite"] = gaps;
  if (run.lines_cut > 0) json["lines_cut"] = run.lines_cut;
  return json;
}

void print_table(const std::vector<Json>& rows, const Options& options) {
  print("| run | points | first | least | at {} | last | not finite |\n|--|--|--|--|--|--|--|\n", options.x);
  for (const Json& row : rows)
    print("| {} | {} | {:.6g} | {:.6g} | {:.10g} | {:.6g} | {} |\n", row["run"].get<std::string>(),
          row["points"].get<long long>(), row["first"].get<double>(), row["least"].get<double>(),
          row["least_at"].get<double>(), row["last"].get<double>(), row["not_finite"].get<long long>());
}

/// The loads of the last `steps` steps together, as multiples of the mean of their layer.
ExpertLoads read_loads(const std::string& path, int steps) {
  const MappedFile file{std::filesystem::path(path)};
  std::deque<ExpertLoads> last;
  std::istringstream lines{std::string(file.text())};
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto found = object.is_object() ? object.find("expert_loads") : object.end();
    if (!object.is_object() || found == object.end()) continue;
    ExpertLoads loads = supervise::expert_loads_of(*found);
    const bool other = !last.empty() && (loads.size() != last.front().size() ||
                                         (!loads.empty() && loads.front().size() != last.front().front().size()));
    if (loads.empty() || other)
      throw ConfigError(
          rule_got_fix(concat(path, ": expert_loads must be as many rows of as many numbers in each step."),
                       line.substr(0, 100), "the metrics.jsonl of one run"));
    last.push_back(std::move(loads));
    if (last.size() > static_cast<std::size_t>(steps)) last.pop_front();
  }
  if (last.empty())
    throw ConfigError(rule_got_fix(concat(path, ": lines must have expert_loads."), "none",
                                   "a run of a mixture of experts with --moe-per-layer-logging"));
  ExpertLoads sum = last.front();
  for (std::size_t step = 1; step < last.size(); ++step)
    for (std::size_t l = 0; l < sum.size(); ++l)
      for (std::size_t e = 0; e < sum[l].size(); ++e) sum[l][e] += last[step][l][e];
  return supervise::relative_loads(std::move(sum));
}

int plot_loads(const std::string& path, const Options& options) {
  const ExpertLoads loads = read_loads(path, options.smooth);
  if (!options.output.empty()) write_file(options.output, supervise::draw_expert_loads(loads, options.title));
  if (options.json) {
    print_json(Json{{"field", options.field}, {"smooth", options.smooth}, {"loads", loads}});
    return kDone;
  }
  print("| layer with experts | least load | most load |\n|--|--|--|\n");
  for (std::size_t l = 0; l < loads.size(); ++l) {
    const auto [least, most] = std::ranges::minmax(loads[l]);
    print("| {} | {:.3f} | {:.3f} |\n", l, least, most);
  }
  return kDone;
}

}  // namespace

int plot(const Args& args) {
  Options options;
  const auto words = config::parse_command_line(options, args, kUsage);
  if (words.empty() || words.size() > kMaxCurves)
    throw ConfigError(rule_got_fix(concat("plot takes 1 to ", kMaxCurves, " runs."), concat(words.size()),
                                   "megatron plot runs/a runs/b"));
  if (options.smooth < 1 || options.smooth > 1'000'000)
    throw ConfigError(
        rule_got_fix("--smooth must be 1 to 1000000.", concat(options.smooth), "--smooth 1, no smoothing"));
  std::vector<LoggedRun> runs;
  std::vector<std::string> inputs;
  for (const std::string& word : words) inputs.push_back(metrics_of(word).string());
  check_outputs({options.output}, inputs);
  if (!options.output.empty() && !options.output.ends_with(".svg"))
    throw ConfigError(rule_got_fix("--output takes a file that ends in .svg.", options.output, "--output curves.svg"));
  if (options.field == "expert_loads") {
    if (inputs.size() > 1)
      throw ConfigError(rule_got_fix("--field expert_loads takes one run.", concat(inputs.size()),
                                     "megatron plot runs/a --field expert_loads"));
    return plot_loads(inputs.front(), options);
  }
  for (const std::string& path : inputs) {
    runs.push_back(read_run(path, options));
    runs.back().curve = charts::smoothed(runs.back().curve, options.smooth);
  }
  std::vector<charts::Curve> curves;
  std::vector<Json> rows;
  for (const LoggedRun& run : runs) {
    curves.push_back(run.curve);
    rows.push_back(summary(run));
  }
  if (!options.output.empty())
    write_file(options.output, charts::draw_curves(options.title.empty() ? options.field : options.title, options.x,
                                                   options.field, curves));
  if (options.json)
    print_json(Json{{"field", options.field}, {"x", options.x}, {"smooth", options.smooth}, {"runs", rows}});
  else
    print_table(rows, options);
  return kDone;
}

}  // namespace megatron::app
