#include "app/serve/run_pictures.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
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
#include "megatron/serve/api/api_error.h"
#include "megatron/supervise/run_files.h"

namespace megatron::app {
namespace {

namespace fs = std::filesystem;

/// The folder itself, the one of its checkpoints, or the one of the checkpoint; nothing where that has no curves.
std::optional<fs::path> folder_of(const fs::path& model) {
  std::error_code none;
  fs::path folder = fs::absolute(model, none).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  if (folder.filename().string().starts_with("iter_")) folder = folder.parent_path();
  if (folder.filename() == "checkpoints") folder = folder.parent_path();
  if (!fs::is_regular_file(folder / "metrics.jsonl", none)) return std::nullopt;
  return folder;
}

/// At most kMaxPoints of the points, the last among them.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points) {
  constexpr std::size_t kMaxPoints = 2000;
  const std::size_t every = points.size() / kMaxPoints + 1;
  std::vector<std::pair<double, double>> some;
  for (std::size_t i = (points.size() - 1) % every; i < points.size(); i += every) some.push_back(points[i]);
  return some;
}

/// Losses as far as the run has come, read on from the last time.
class Curves {
 public:
  explicit Curves(const fs::path& folder) : curves_(folder) {}

  std::string draw() {
    const std::lock_guard lock(mutex_);
    curves_.update();
    const std::pair read(curves_.steps().size(), curves_.validations().size());
    if (read == drawn_) return picture_;
    charts::Curve training{.name = "training", .points = {}}, validation{.name = "validation", .points = {}};
    for (const supervise::StepPoint& step : curves_.steps())
      training.points.emplace_back(static_cast<double>(step.iteration), step.loss);
    for (const supervise::ValidationPoint& point : curves_.validations())
      validation.points.emplace_back(static_cast<double>(point.iteration), point.loss);
    std::vector<charts::Curve> some;
    for (const charts::Curve* const curve : {&training, &validation})
      if (std::ranges::any_of(curve->points, [](const auto& point) { return std::isfinite(point.second); }))
        some.push_back({.name = curve->name, .points = thinned(curve->points)});
    if (some.empty()) throw serve::ApiError(404, "the run has written no loss yet", "", "not_found");
    picture_ = charts::draw_curves("loss", "iteration", "loss", some);
    drawn_ = read;
    return picture_;
  }

 private:
  std::mutex mutex_;
  supervise::RunCurves curves_;
  std::pair<std::size_t, std::size_t> drawn_ = {};  ///< steps and validations of the picture
  std::string picture_;
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
