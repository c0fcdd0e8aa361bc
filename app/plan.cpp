#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/jobs.h"
#include "app/recipe.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/plan/report.h"
#include "megatron/plan/rules.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron plan RECIPE.toml [--world-size N] [--json] [OPTION]…\n\n"
    "What a run of this recipe would be: groups of ranks, slices of parameters, buckets of gradients, samples of each\n"
    "rank, memory, arithmetic. Nothing is run and nothing is written.";

struct PlanOptions {
  config::RunConfig run;
  bool as_json = false;
  void visit(auto& v) {
    v("json", as_json, "Print one JSON object.");
    run.visit(v);
  }
};

}  // namespace

int plan(const Args& args) {
  PlanOptions options;
  std::optional<RunAndTokenizer> resolved;
  config::parse_recipe_command(options, &PlanOptions::run, args, kUsage,
                               [&] { resolved = resolve_with_tokenizer(options.run, {}); });
  const plan::ResolvedRun& run = resolved->run;
  const std::string text = options.as_json ? plan::report(run).dump() + "\n" : plan::report_text(run);
  std::fputs(text.c_str(), stdout);
  return kDone;
}

}  // namespace megatron::app
