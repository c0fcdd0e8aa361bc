#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

#include "app/bench/bench.h"
#include "app/bench/pipeline_options.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/options.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/recipe/resolve.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/ranks.h"
#include "megatron/train/engine.h"

// How near real pipeline runs come to their prediction: first runs whose operations are timed, a simulation of each
// schedule with these times, and only then the runs that it is compared with; each schedule in turn, with the same
// weights and samples.
namespace megatron::app {
namespace {

using Json = nlohmann::ordered_json;
using schedule::Timeline;

template <class Of>
double median_of(const std::vector<Timeline>& steps, const Of& of) {
  std::vector<double> values;
  for (const Timeline& step : steps) values.push_back(of(step));
  return median(values);
}

std::vector<Timeline> measure(const plan::ResolvedRun& run, const BenchPipelineOptions& options, comm::Group world,
                              at::Device device) {
  train::Engine engine(run, std::move(world), device);
  std::vector<Timeline> timelines;
  for (std::int64_t i = 0; i < options.warmup + options.steps; ++i) {
    train::synthetic_step(engine, run, i, 1e-4);
    if (!engine.pipeline.measures()) continue;
    auto timeline = engine.pipeline.timeline();
    if (i >= options.warmup) timelines.push_back(std::move(*timeline));
  }
  return timelines;
}

/// Appends the steps of each run to `steps`, round after round; the first rank alone. Every rank of `world` calls it.
void run_rounds(const std::vector<plan::ResolvedRun>& runs, const BenchPipelineOptions& options,
                const comm::Group& world, at::Device device, std::vector<std::vector<Timeline>>& steps) {
  for (std::int64_t round = 0; round < options.rounds; ++round)
    for (std::size_t i = 0; i < runs.size(); ++i) {
      auto measured = measure(runs[i], options, world, device);
      if (world.rank() == 0) std::move(measured.begin(), measured.end(), std::back_inserter(steps[i]));
    }
}

/// The mean of each operation's cost over all steps.
schedule::Costs costs_of(const std::vector<Timeline>& steps, const plan::ResolvedRun& run) {
  Timeline all = steps.front();
  for (std::size_t i = 1; i < steps.size(); ++i)
    for (std::size_t rank = 0; rank < all.ranks.size(); ++rank)
      all.ranks[rank].insert(all.ranks[rank].end(), steps[i].ranks[rank].begin(), steps[i].ranks[rank].end());
  return schedule::measured_costs(all, plan::stage_costs(run.config, run.shape, run.parts));
}

double simulated_s(const schedule::Program& program, const schedule::Costs& costs) {
  return schedule::simulate(program, costs).makespan;
}

schedule::Program program_of(const plan::ResolvedRun& run) {
  return plan::pipeline_program(run, run.microbatches_per_step);
}

/// What is said of a schedule before it is measured.
struct Prediction {
  schedule::Costs costs;  ///< mean times of operations in runs of their own
  schedule::Timeline simulated;
};

Prediction predict(const plan::ResolvedRun& run, const std::vector<Timeline>& timed) {
  schedule::Costs costs = costs_of(timed, run);
  schedule::Timeline simulated = schedule::simulate(program_of(run), costs);
  return {std::move(costs), std::move(simulated)};
}

/// Whole lines as soon as they are known; on stderr where stdout is for JSON.
void print_predictions(const std::vector<plan::ResolvedRun>& runs, const std::vector<Prediction>& predictions,
                       std::FILE* out) {
  for (std::size_t i = 0; i < runs.size(); ++i)
    write_line(out, formatted("predicted {}: {:.4g} ms per step, bubble {:.1f} %", runs[i].config.parallel.pp_schedule,
                              1e3 * predictions[i].simulated.makespan, 100 * predictions[i].simulated.bubble));
}

Json report_of(const plan::ResolvedRun& run, const Prediction& prediction, const std::vector<Timeline>& steps) {
  const double measured_ms = 1e3 * median_of(steps, [](const Timeline& step) { return step.makespan; });
  const double predicted_ms = 1e3 * prediction.simulated.makespan;
  const auto ms = [](std::vector<double> seconds) {
    for (double& s : seconds) s *= 1e3;
    return seconds;
  };
  return {{"schedule", run.config.parallel.pp_schedule},
          {"predicted_ms", predicted_ms},
          {"measured_ms", measured_ms},
          {"measured_over_predicted", measured_ms / predicted_ms},
          {"bubble_predicted", prediction.simulated.bubble},
          {"bubble_measured", median_of(steps, [](const Timeline& step) { return step.bubble; })},
          {"peak_activations", prediction.simulated.peak_live},
          {"forward_ms", ms(prediction.costs.forward)},
          {"backward_input_ms", ms(prediction.costs.backward_input)},
          {"backward_weight_ms", ms(prediction.costs.backward_weight)}};
}

/// How much faster schedule `i` is than the first, and what the simulator made of both with the costs of `i`, which
/// alone may tell the halves of a backward apart.
Json comparison(const std::vector<plan::ResolvedRun>& runs, const std::vector<Prediction>& predictions,
                const std::vector<std::vector<Timeline>>& steps, std::size_t i) {
  const auto measured_s = [&](std::size_t k) {
    return median_of(steps[k], [](const Timeline& step) { return step.makespan; });
  };
  const schedule::Costs& costs = predictions[i].costs;
  const double predicted = 1 - simulated_s(program_of(runs[i]), costs) / simulated_s(program_of(runs[0]), costs);
  const double measured = 1 - measured_s(i) / measured_s(0);
  return {{"schedule", runs[i].config.parallel.pp_schedule},
          {"against", runs[0].config.parallel.pp_schedule},
          {"time_saved_predicted", predicted},
          {"time_saved_measured", measured},
          {"measured_over_predicted", predicted > 0 ? Json(measured / predicted) : Json()}};
}

void print_table(const Json& json) {
  for (const char* list : {"schedules", "comparisons"})
    for (const Json& entry : json[list]) {
      for (const auto& [name, value] : entry.items()) print("{:24} {}\n", name, value.dump());
      print_text("\n");
    }
}

int run_bench_pipeline(const Args& args) {
  const auto place = comm::place_from(comm::process_environment());
  const auto [options, runs] = bench_pipeline_command(args);
  for (const plan::ResolvedRun& run : runs) run::check_memory(run, place, plan::Holding::Training);
  kernels::install_caching_allocator();
  std::vector<std::vector<Timeline>> timed(runs.size()), steps(runs.size());  // of the first rank alone
  std::vector<Prediction> predictions;
  // The ranks meet once: all schedules have the same number of them.
  const int code = run::run_on_ranks(runs[0], place, [&](const comm::Group& world, at::Device device) {
    run_rounds(runs, options, world, device, timed);
    if (world.rank() == 0) {
      for (std::size_t i = 0; i < runs.size(); ++i) predictions.push_back(predict(runs[i], timed[i]));
      print_predictions(runs, predictions, options.as_json ? stderr : stdout);
    }
    run_rounds(runs, options, world, device, steps);
    return kDone;
  });
  if (code != kDone || predictions.empty()) return code;  // another process reports
  Json json{{"ranks", runs[0].grid.world_size()}, {"microbatches", runs[0].microbatches_per_step}};
  json["schedules"] = json["comparisons"] = Json::array();
  for (std::size_t i = 0; i < runs.size(); ++i)
    json["schedules"].push_back(report_of(runs[i], predictions[i], steps[i]));
  for (std::size_t i = 1; i < runs.size(); ++i)
    if (runs[i].parts == runs[0].parts) json["comparisons"].push_back(comparison(runs, predictions, steps, i));
  if (options.as_json)
    print_json(json);
  else
    print_table(json);
  return kDone;
}

}  // namespace

int bench_pipeline(const Args& args) {
  return run::run_job_of_ranks([&] { return run_bench_pipeline(args); });
}

}  // namespace megatron::app
