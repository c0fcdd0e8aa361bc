#include "megatron/study/scaling.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/format.h"
#include "megatron/charts/bar_chart.h"
#include "megatron/plan/cost/memory.h"

namespace megatron::study {
namespace {

constexpr double kStepsOfEpoch = 68507, kSecondsOfDay = 86400;

struct Sizes {
  const char* name;
  std::int64_t num_layers, hidden, heads;
};
constexpr std::array<Sizes, 4> kTable1 = {
    {{"1.2 B", 40, 1536, 16}, {"2.5 B", 54, 1920, 20}, {"4.2 B", 64, 2304, 24}, {"8.3 B", 72, 3072, 32}}};

PaperRow row(const char* table, std::string label, const Sizes& sizes, int tp, int dp, Figure figure,
             double published) {
  return {.table = table,
          .label = std::move(label),
          .num_layers = sizes.num_layers,
          .hidden = sizes.hidden,
          .heads = sizes.heads,
          .tp = tp,
          .dp = dp,
          .figure = figure,
          .published = published,
          .points = 0,
          .share = 0.1};
}

std::string deviation_text(const PredictedRow& row) {
  const double share = 100 * row.deviation() / row.paper.published;
  const std::string relative = fmt::format("{:+.1f} %", share);
  if (row.paper.figure != Figure::Efficiency) return relative;
  return fmt::format("{:+.1f} points, {}", row.deviation(), relative);
}

std::string goal_text(const PredictedRow& row) {
  if (!row.has_goal()) return "none";
  const std::string goal = row.paper.points > 0 ? fmt::format("{:.0f} points", row.paper.points)
                                                : fmt::format("{:.0f} %", 100 * row.paper.share);
  return goal + (row.meets_goal() ? "" : ": missed");
}

}  // namespace

std::vector<PaperRow> paper_rows() {
  std::vector<PaperRow> rows;
  const char* baseline = "Baseline (5.1)";
  rows.push_back(row(baseline, "1.2 B, 1 rank", kTable1[0], 1, 1, Figure::Teraflops, 39));
  constexpr std::array<int, 4> kTp = {1, 2, 4, 8};
  constexpr std::array<double, 4> kModel = {100, 95, 82, 77}, kModelAndData = {96, 83, 79, 74};
  for (std::size_t i = 1; i < kTp.size(); ++i)
    rows.push_back(row("Table 1, tensor-parallel", concat(kTable1[i].name, ", ", kTp[i], " ranks"), kTable1[i], kTp[i],
                       1, Figure::Efficiency, kModel[i]));
  for (std::size_t i = 0; i < kTp.size(); ++i)
    rows.push_back(row("Table 1, with 64-way data-parallel", concat(kTable1[i].name, ", ", 64 * kTp[i], " ranks"),
                       kTable1[i], kTp[i], 64, Figure::Efficiency, kModelAndData[i]));
  for (PaperRow& each : rows)
    if (each.published == 77 || each.published == 74) each.points = 3;
  for (const auto& [heads, published] : {std::pair(16, 82.0), std::pair(24, 80.0), std::pair(32, 77.0)})
    rows.push_back(row("Table 7, heads on 8 ranks", concat(heads, " heads"), {"8.3 B", 72, 3072, heads}, 8, 1,
                       Figure::Efficiency, published));
  for (const auto& [tp, published] : {std::pair(2, 1.64), std::pair(4, 2.34), std::pair(8, 2.98)})
    rows.push_back(
        row("Table 8, strong scaling", concat("1.2 B, ", tp, " ranks"), kTable1[0], tp, 1, Figure::Speedup, published));
  const char* held_out = "Table 2, not fitted";
  rows.push_back(row(held_out, "355 M, 64 ranks", {"355 M", 24, 1024, 16}, 1, 64, Figure::Days, 0.86));
  rows.push_back(row(held_out, "2.5 B, 128 ranks", kTable1[1], 2, 64, Figure::Days, 2.27));
  rows.push_back(row(held_out, "8.3 B, 512 ranks", {"8.3 B", 72, 3072, 24}, 8, 64, Figure::Days, 2.10));
  for (PaperRow& each : rows)
    if (each.table == held_out) each.share = 0;
  return rows;
}

config::RunConfig paper_config(const PaperRow& row) {
  constexpr std::int64_t kSamples = 8;
  config::RunConfig config;
  config.model.num_layers = row.num_layers;
  config.model.hidden_size = row.hidden;
  config.model.num_attention_heads = row.heads;
  config.model.vocab_size = 50257;
  config.model.make_vocab_size_divisible_by = 1024;
  config.parallel.tp = row.tp;
  config.parallel.dp = row.dp;
  config.parallel.world_size = row.tp * row.dp;
  config.parallel.device = "cuda";
  config.data.seq_length = 1024;
  config.train.micro_batch_size = kSamples;
  config.train.global_batch_size = kSamples * row.dp;
  config.train.dtype = config.optimizer.grad_dtype = "fp16";
  config.train.recompute = "full";
  return config;
}

bool PredictedRow::meets_goal() const {
  return std::abs(deviation()) <= (paper.points > 0 ? paper.points : paper.share * paper.published);
}

bool meets_goals(const std::vector<PredictedRow>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const PredictedRow& row) {
    return !row.has_goal() || (row.memory.fits() && row.meets_goal());
  });
}

std::string Fit::text() const {
  return concat("needs ", human_bytes(static_cast<double>(bytes)), " of ", human_bytes(capacity));
}

Fit fit_of(const plan::ResolvedRun& run, const plan::Hardware& hardware) {
  return {.bytes = largest_memory(run, hardware.processor).total(), .capacity = hardware.memory.capacity_bytes()};
}

std::vector<PredictedRow> predict_paper(const plan::Hardware& hardware) {
  std::vector<PredictedRow> rows;
  plan::StepCost baseline;
  for (PaperRow& paper : paper_rows()) {
    const plan::ResolvedRun run = plan::resolve(paper_config(paper));
    const plan::StepCost cost = plan::step_cost(run, hardware);
    if (rows.empty()) baseline = cost;
    double predicted = cost.rank_tflops;
    if (paper.figure == Figure::Efficiency) predicted = 100 * cost.rank_tflops / baseline.rank_tflops;
    if (paper.figure == Figure::Speedup) predicted = baseline.step_s / cost.step_s;
    if (paper.figure == Figure::Days) predicted = cost.step_s * kStepsOfEpoch / kSecondsOfDay;
    rows.push_back({std::move(paper), cost, predicted, fit_of(run, hardware)});
  }
  return rows;
}

std::string figure_text(Figure figure, double value) {
  switch (figure) {
    case Figure::Teraflops:
      return fmt::format("{:.1f} TFLOP/s", value);
    case Figure::Efficiency:
      return fmt::format("{:.1f} %", value);
    case Figure::Speedup:
      return fmt::format("{:.2f} x", value);
    case Figure::Days:
      return fmt::format("{:.2f} days", value);
  }
  return "";
}

std::string scaling_markdown(const std::vector<PredictedRow>& rows, bool compare) {
  std::string out = compare ? "| table | run | paper | predicted | off by | goal |\n|--|--|--|--|--|--|\n"
                            : "| table | run | predicted | step |\n|--|--|--|--|\n";
  std::vector<std::pair<std::string, plan::StepCost>> steps;
  for (const PredictedRow& row : rows) {
    const auto text = [&](double value) { return figure_text(row.paper.figure, value); };
    out += concat("| ", row.paper.table, " | ", row.paper.label, " | ");
    if (!row.memory.fits()) {
      out += compare ? concat(text(row.paper.published), " | does not fit: ", row.memory.text(), " | | |\n")
                     : concat("does not fit: ", row.memory.text(), " | |\n");
      continue;
    }
    if (compare)
      out += concat(text(row.paper.published), " | ", text(row.predicted), " | ", deviation_text(row), " | ",
                    goal_text(row), " |\n");
    else
      out += fmt::format("{} | {:.1f} ms |\n", text(row.predicted), 1e3 * row.cost.step_s);
    steps.emplace_back(row.paper.label, row.cost);
  }
  return out + "\n" + parts_markdown(steps);
}

std::string parts_markdown(const std::vector<std::pair<std::string, plan::StepCost>>& steps) {
  std::string out = "| milliseconds | step |", line = "|--|--|";
  for (const auto& [name, seconds] : plan::StepParts().named()) {
    out += concat(" ", name, " |");
    line += "--|";
  }
  out += "\n" + line + "\n";
  for (const auto& [label, cost] : steps) {
    out += fmt::format("| {} | {:.1f} |", label, 1e3 * cost.step_s);
    for (const auto& [name, seconds] : cost.parts.named()) out += fmt::format(" {:.1f} |", 1e3 * seconds);
    out += '\n';
  }
  return out;
}

std::string scaling_svg(const std::vector<PredictedRow>& rows, const plan::Hardware& hardware, bool compare) {
  std::vector<charts::BarGroup> groups;
  for (const PredictedRow& row : rows) {
    if (groups.empty() || groups.back().heading != row.paper.table) groups.push_back({row.paper.table, {}});
    charts::BarCluster cluster;
    cluster.label = row.paper.label;
    if (const std::size_t comma = cluster.label.find(", "); comma != std::string::npos)
      cluster.label.replace(comma, 2, "\n");
    const int decimals = row.paper.figure == Figure::Efficiency || row.paper.figure == Figure::Teraflops ? 0 : 2;
    const auto add = [&](double value) {
      cluster.values.push_back(value);
      cluster.texts.push_back(
          fmt::format("{:.{}f}{}", value, decimals, row.paper.figure == Figure::Efficiency ? " %" : ""));
    };
    if (compare) add(row.paper.published);
    if (row.memory.fits()) {
      add(row.predicted);
    } else {
      cluster.values.push_back(0);
      cluster.texts.emplace_back("no room");
    }
    groups.back().clusters.push_back(std::move(cluster));
  }
  const std::string title =
      concat("Scaling of Megatron-LM (2019) on ", hardware.name, compare ? ": paper and prediction" : ": prediction");
  return charts::draw_bars(
      title, compare ? std::vector<std::string>{"paper", "predicted"} : std::vector<std::string>{"predicted"}, groups);
}

}  // namespace megatron::study
