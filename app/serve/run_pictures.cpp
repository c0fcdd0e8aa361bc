#include "app/serve/run_pictures.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
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
#include "megatron/supervise/expert_loads.h"
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

using Points = std::vector<std::pair<double, double>>;

/// At most kMaxPoints of the points, the last among them.
Points thinned(const Points& points) {
  constexpr std::size_t kMaxPoints = 2000;
  const std::size_t every = points.size() / kMaxPoints + 1;
  Points some;
  for (std::size_t i = (points.size() - 1) % every; i < points.size(); i += every) some.push_back(points[i]);
  return some;
}

/// A figure of a step as a point of a curve: a gap where it is none that a run can have, whose axis no picture can
/// show.
std::pair<double, double> point_of(std::int64_t iteration, double value) {
  constexpr double kMost = 1e100;
  return {static_cast<double>(iteration), std::abs(value) <= kMost ? value : std::numeric_limits<double>::quiet_NaN()};
}

bool is_finite(const std::pair<double, double>& point) { return std::isfinite(point.second); }

/// A curve over the steps.
struct StepCurve {
  const char* name;
  double supervise::StepPoint::*value;
  double unit = 1;
};

/// Curves in one picture.
struct StepChart {
  const char *name, *title, *unit;
  std::vector<StepCurve> figures;
};

std::vector<StepChart> step_charts() {
  using Step = supervise::StepPoint;
  constexpr double kGiB = 1 << 30;
  return {{"learning_rate", "learning rate", "learning rate", {{"learning rate", &Step::learning_rate}}},
          {"grad_norm", "gradient norm", "norm", {{"gradient norm", &Step::grad_norm}}},
          {"tokens_per_s", "tokens per second", "tokens/s", {{"tokens per second", &Step::tokens_per_s}}},
          {"memory",
           "memory of the first rank",
           "GiB",
           {{"after the step", &Step::memory_bytes, kGiB}, {"most so far", &Step::peak_memory_bytes, kGiB}}}};
}

/// What a run has written so far, read on from the last time, as pictures. Safe to call from several threads.
class RunPictures {
 public:
  explicit RunPictures(const fs::path& folder) : curves_(folder) {}

  std::string losses() {
    return drawn("curves", [&] {
      Points training, validation;
      for (const supervise::StepPoint& step : curves_.steps()) training.push_back(point_of(step.iteration, step.loss));
      for (const supervise::ValidationPoint& point : curves_.validations())
        validation.push_back(point_of(point.iteration, point.loss));
      return picture_of("loss", "loss", {{"training", std::move(training)}, {"validation", std::move(validation)}});
    });
  }

  bool has(const StepChart& chart) {
    const std::lock_guard lock(mutex_);
    update();
    return std::ranges::any_of(chart.figures, [&](const StepCurve& figure) {
      return std::ranges::any_of(curves_.steps(), [&](const supervise::StepPoint& step) {
        return is_finite(point_of(step.iteration, step.*figure.value));
      });
    });
  }

  std::string figures(const StepChart& chart) {
    return drawn(chart.name, [&] {
      std::vector<charts::Curve> curves;
      for (const StepCurve& figure : chart.figures) {
        charts::Curve& curve = curves.emplace_back(charts::Curve{.name = figure.name, .points = {}});
        for (const supervise::StepPoint& step : curves_.steps())
          curve.points.push_back(point_of(step.iteration, step.*figure.value / figure.unit));
      }
      return picture_of(chart.title, chart.unit, std::move(curves));
    });
  }

  bool has_experts() {
    const std::lock_guard lock(mutex_);
    update();
    return curves_.experts() && !curves_.experts()->copies.empty();
  }

  std::string experts() {
    return drawn("experts", [&] {
      if (!curves_.experts() || curves_.experts()->copies.empty()) throw nothing_yet();
      return supervise::draw_expert_loads(supervise::relative_loads(curves_.experts()->copies));
    });
  }

 private:
  static serve::ApiError nothing_yet() { return {404, "the run has written nothing of this yet", "", "not_found"}; }

  static std::string picture_of(const char* title, const char* unit, std::vector<charts::Curve> curves) {
    for (charts::Curve& curve : curves) curve.points = thinned(curve.points);
    std::erase_if(curves, [](const charts::Curve& curve) { return std::ranges::none_of(curve.points, is_finite); });
    if (curves.empty()) throw nothing_yet();
    return charts::draw_curves(title, "iteration", unit, curves);
  }

  void update() {
    if (curves_.update()) pictures_.clear();
  }

  template <class Draw>
  std::string drawn(const std::string& name, const Draw& draw) {
    const std::lock_guard lock(mutex_);
    update();
    std::string& picture = pictures_[name];
    if (picture.empty()) picture = draw();
    return picture;
  }

  std::mutex mutex_;
  supervise::RunCurves curves_;
  std::map<std::string, std::string> pictures_;  ///< of what was read so far
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

std::vector<serve::Picture> run_pictures(const fs::path& model) {
  const auto folder = folder_of(model);
  if (!folder) return {};
  const auto run = std::make_shared<RunPictures>(*folder);
  std::vector<serve::Picture> pictures = {{"curves", [run] { return run->losses(); }}};
  for (const StepChart& chart : step_charts())
    pictures.push_back(
        {chart.name, [run, chart] { return run->figures(chart); }, [run, chart] { return run->has(chart); }});
  pictures.push_back({"experts", [run] { return run->experts(); }, [run] { return run->has_experts(); }});
  if (const auto schedule = draw_schedule(*folder))
    pictures.push_back({"schedule", [drawn = *schedule] { return drawn; }});
  return pictures;
}

}  // namespace megatron::app
