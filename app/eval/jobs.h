#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/eval/eval_options.h"
#include "app/jobs.h"
#include "megatron/run/trained_model.h"
#include "megatron/tasks/scores/eval_scores.h"
#include "megatron/tasks/windows.h"

// What the jobs of `megatron eval` have in common: a model, tokens of which windows are scored, a report.
namespace megatron::app {

int eval_loss(const Args& args);
int eval_wikitext(const Args& args);
int eval_lambada(const Args& args);
int eval_choice(const Args& args);
/// `task`: of tasks::task_kind_of(), or "squad", whose version the file tells.
int eval_task(const std::string& task, const Args& args);

/// What the flags name, with the adapter that is kept. Throws as run::open_trained_model() and run::keep_adapter().
run::TrainedModel opened(const EvalFlags& flags);

/// Tokens that a window may have: the last is only a label.
inline std::int64_t longest_window(const run::TrainedModel& model) { return model.run.shape.max_positions + 1; }

/// Throws ConfigError where this machine cannot hold the weights and a layer of flags.batch_size (at most `samples`)
/// rows of `tokens`.
void check_eval_memory(const EvalFlags& flags, run::TrainedModel& model, std::int64_t samples, std::int64_t tokens);

struct EvalWork {
  run::TrainedModel model;
  std::vector<std::int64_t> ids;
  std::vector<tasks::Window> windows;
  std::string unit = "windows";  ///< what one is called
  bool likeliest = false;        ///< whether WindowScore::right is asked for
};

/// The job's own fields of the report.
using EvalReport = std::function<nlohmann::ordered_json(const std::vector<tasks::WindowScore>& scores)>;

/// Prints `fields` and what all reports have: the dtype, seconds, and how fast `tokens` were read.
void print_report(nlohmann::ordered_json fields, const EvalFlags& flags, const plan::ResolvedRun& run,
                  std::int64_t tokens, double seconds);

/// Scores `work` on the ranks that its model's run has, and prints `report` with what all reports have. Throws
/// ConfigError for an id outside the model's vocabulary before a rank starts.
int run_eval(const EvalFlags& flags, EvalWork& work, const EvalReport& report);

}  // namespace megatron::app
