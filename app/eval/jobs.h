#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
int eval_predictions(const Args& args);
/// `task`: of tasks::task_kind_of(), or "squad", whose version the file tells.
int eval_task(const std::string& task, const Args& args);

struct EvalFlags : run::ModelFlags {
  std::string data;
  std::int64_t limit = 0, batch_size = 0;
  std::string progress = "auto";
  bool json = false;

  EvalFlags() { dp = 0; }

  void visit(auto& v) {
    run::ModelFlags::visit(v);
    v("dp", dp, "Data-parallel size: ranks that share the windows or examples; 0: world_size / (tp x pp), or 1.");
    v("data", data, "File to score.", config::Required(), config::Common());
    v("limit", limit, "Only the first N windows or examples; 0: all.", config::Common());
    v("batch_size", batch_size, "Windows or examples per batch; 0: as many as hold 4096 tokens.", config::Common());
    v("progress", progress, "Progress with rate and ETA; auto: on a terminal.", config::RanksMayDiffer(),
      config::Choices({"auto", "on", "off"}));
    v("json", json, "Print one JSON object on stdout.", config::Common());
  }
};

/// Throws ConfigError for words that are no options, and flags that no job of these can have.
void check_eval_flags(const EvalFlags& flags, const std::vector<std::string>& rest, const char* usage);

/// Tokens that a window may have: the last is only a label.
inline std::int64_t longest_window(const run::TrainedModel& model) { return model.run.shape.max_positions + 1; }

/// Throws ConfigError where this machine cannot hold the weights and a layer of flags.batch_size (at most `samples`)
/// rows of `tokens`.
void check_eval_memory(const EvalFlags& flags, const run::TrainedModel& model, std::int64_t samples,
                       std::int64_t tokens);

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
int run_eval(const EvalFlags& flags, const EvalWork& work, const EvalReport& report);

}  // namespace megatron::app
