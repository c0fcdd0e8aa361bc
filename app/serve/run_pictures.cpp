#include "app/serve/run_pictures.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megatron/charts/line_chart.h"
#include "megatron/config/options.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/plan/rules.h"
#include "megatron/recipe/resolve.h"
#include "megatron/schedule/pictures/draw.h"
#include "megatron/schedule/simulate.h"
#include "megatron/supervise/run_files.h"

namespace megatron::app {
namespace {

namespace fs = std::filesystem;

/// The folder itself, the one of its checkpoints, or the one of the checkpoint; nothing where none has curves.
std::optional<fs::path> folder_of(const fs::path& model) {
  std::error_code none;
  fs::path folder = fs::absolute(model, none).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  for (int up = 0; up < 3 && !none; ++up, folder = folder.parent_path())
    if (fs::is_regular_file(folder / "metrics.jsonl", none)) return folder;
  return std::nullopt;
}

/// Losses as far as the run has come, read on from the last time.
class Curves {
 public:
  explicit Curves(const fs::path& folder) : curves_(folder) {}

  std::string draw() {
    const std::lock_guard lock(mutex_);
    curves_.update();
    charts::Curve training{.name = "training", .points = {}}, validation{.name = "validation", .points = {}};
    for (const supervise::StepPoint& step : curves_.steps())
      training.points.emplace_back(static_cast<double>(step.iteration), step.loss);
    for (const supervise::ValidationPoint& point : curves_.validations())
      validation.points.emplace_back(static_cast<double>(point.iteration), point.loss);
    std::vector<charts::Curve> drawn;
    for (charts::Curve* const curve : {&training, &validation})
      if (std::ranges::any_of(curve->points, [](const auto& point) { return std::isfinite(point.second); }))
        drawn.push_back(std::move(*curve));
    if (drawn.empty()) throw std::runtime_error("the run has written no loss yet");
    return charts::draw_curves("loss", "iteration", "loss", drawn);
  }

 private:
  std::mutex mutex_;
  supervise::RunCurves curves_;
};

/// The pipeline's step as the run's recipe.toml has it; nothing without a pipeline, or where it says no whole run.
std::optional<std::string> draw_schedule(const fs::path& folder) {
  try {
    config::RunConfig recipe;
    config::load_toml(recipe, (folder / "recipe.toml").string());
    const plan::ResolvedRun run =
        plan::resolve(recipe, {.schedule_file = recipe::read_schedule_file(recipe.parallel.pp_schedule)});
    if (run.parts.size() == 1) return std::nullopt;
    const schedule::Program program = plan::pipeline_program(run, run.microbatches_per_step);
    return schedule::draw_svg(schedule::simulate(program, plan::stage_costs(run.config, run.shape, run.parts)),
                              plan::schedule_text(run));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::map<std::string, std::function<std::string()>> run_pictures(const fs::path& model) {
  const auto folder = folder_of(model);
  if (!folder) return {};
  std::map<std::string, std::function<std::string()>> pictures;
  pictures["curves"] = [curves = std::make_shared<Curves>(*folder)] { return curves->draw(); };
  if (const auto schedule = draw_schedule(*folder)) pictures["schedule"] = [drawn = *schedule] { return drawn; };
  return pictures;
}

}  // namespace megatron::app
