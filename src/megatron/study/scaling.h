#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/run_config.h"
#include "megatron/plan/cost/cost_model.h"

// The scaling study of Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
// Parallelism": what it measured on DGX-2H servers, and what the cost model makes of the same runs.
namespace megatron::study {

/// The machine of the paper, as configs/hardware/dgx2h.toml names it.
inline constexpr const char* kPaperHardware = "DGX-2H";

/// What a row of its tables says.
enum class Figure : std::uint8_t {
  Teraflops,   ///< of a rank, 10^12 operations per second
  Efficiency,  ///< operations per second and rank against the baseline's, in percent
  Speedup,     ///< against the baseline's time
  Days,        ///< for 68,507 steps, an epoch
};

struct PaperRow {
  std::string table;
  std::string label;
  std::int64_t num_layers = 0, hidden = 0, heads = 0;
  int tp = 1, dp = 1;
  Figure figure = Figure::Efficiency;
  double published = 0;
  /// How far a prediction may be off: percentage points, or where that is 0 the `share` of the published figure.
  double points = 0, share = 0;
};

/// Table 1 with figure 5 (constant parameters per rank), table 7 (attention heads), table 8 (strong scaling), and from
/// table 2 the days of an epoch, which no constant was fitted to and which have no goal (share 0). The baseline, 1.2 B
/// parameters on one rank, is the first.
std::vector<PaperRow> paper_rows();

/// The row's run: 8 samples of 1024 tokens a model copy, float16 with gradients in float16, every layer recomputed.
config::RunConfig paper_config(const PaperRow& row);

/// What the rank of a run holds that holds most, against the memory that the hardware gives it.
struct Fit {
  std::int64_t bytes = 0;
  double capacity = 0;

  bool fits() const { return static_cast<double>(bytes) <= capacity; }
  std::string text() const;  ///< "needs 41.2 GB of 32.0 GB"
};
Fit fit_of(const plan::ResolvedRun& run, const plan::Hardware& hardware);

struct PredictedRow {
  PaperRow paper;
  plan::StepCost cost;
  double predicted = 0;  ///< in the unit of paper.published; of a run that does not fit, of no use
  Fit memory;

  double deviation() const { return predicted - paper.published; }
  bool has_goal() const { return paper.points > 0 || paper.share > 0; }
  bool meets_goal() const;
};

std::vector<PredictedRow> predict_paper(const plan::Hardware& hardware);

/// Whether every row that has a goal meets it.
bool meets_goals(const std::vector<PredictedRow>& rows);

/// "95 %", "1.64", "39.0": a figure as tables show it.
std::string figure_text(Figure figure, double value);

/// Tables in Markdown: the figures, and where the time of each step goes. `compare`: with the paper's for comparison. A
/// run that the memory does not hold has what it needs in place of figures.
std::string scaling_markdown(const std::vector<PredictedRow>& rows, bool compare);

/// scaling_markdown()'s figures as columns.
std::string scaling_svg(const std::vector<PredictedRow>& rows, const plan::Hardware& hardware, bool compare);

/// Where the time of steps goes, in milliseconds: a Markdown table of named costs.
std::string parts_markdown(const std::vector<std::pair<std::string, plan::StepCost>>& steps);

}  // namespace megatron::study
