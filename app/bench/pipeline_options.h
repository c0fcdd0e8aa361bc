#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/jobs.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/plan/rules.h"
#include "megatron/schedule/table.h"

namespace megatron::app {

/// The options of `megatron bench pipeline`.
struct BenchPipelineOptions {
  config::RunConfig run;
  std::vector<std::string> schedules = {"1f1b", "zb-h1"};
  std::int64_t steps = 6, warmup = 2, rounds = 3;
  bool as_json = false;
  void visit(auto& v) {
    v("schedules", schedules,
      "Schedules to run (" + schedule::schedule_names() + ", auto, or files), the first to compare the others with.",
      config::Common());
    v("steps", steps, "Steps per schedule in each round.", config::Common());
    v("warmup", warmup, "Warm-up steps before them.", config::Common());
    v("rounds", rounds, "Rounds over all schedules, so that a busy machine slows each of them.", config::Common());
    v("json", as_json, "Print one JSON object on stdout.", config::Common());
    run.visit(v);
  }
};

/// The runs that are compared, one for each schedule.
struct BenchPipelineCommand {
  BenchPipelineOptions options;
  std::vector<plan::ResolvedRun> runs;
};

/// What recipe and words say. Throws HelpRequested, and ConfigError for what is wrong whatever the machine is.
BenchPipelineCommand bench_pipeline_command(const Args& args);

}  // namespace megatron::app
