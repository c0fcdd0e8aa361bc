#include "app/eval/predictions.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "app/flags.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/options.h"
#include "megatron/config/tables/tasks.h"
#include "megatron/tasks/task_info.h"

// `megatron eval predictions`: what a finished file of predictions scores, without a model.
namespace megatron::app {
namespace {

std::string predictions_usage() {
  return "megatron eval predictions --task " + config::task_choices() +
         " --data F --predictions F [--null-odds F]\n\n"
         "What predictions score against the task's file, in percent: of SQuAD as the official scripts report it.";
}

struct PredictionFlags {
  std::string task, data, predictions, null_odds;
  std::int64_t limit = 0;
  double null_threshold = 1;
  bool json = false;

  void visit(auto& v) {
    v("task", task, "Task.", config::Required(), config::Choices(config::task_names()));
    v("data", data, "The task's file as it is published, with labels; race: also a folder.", config::Required());
    v("predictions", predictions, "predictions.json; for mnli and qqp also predictions.tsv.", config::Required());
    v("limit", limit, "Only the first N examples, as in the run that predicted them; 0: all.");
    v("null_odds", null_odds, "squad2: null_odds.json, for the best thresholds.");
    v("null_threshold", null_threshold, "squad2: questions whose null odds are above this are not answered.");
    v("json", json, "Print one JSON object on one line.");
  }
};

}  // namespace

int eval_predictions(const Args& args) {
  PredictionFlags flags;
  no_words(config::parse_command_line(flags, args, predictions_usage()));
  const tasks::TaskInfo& task = tasks::task_info(tasks::task_kind_of(flags.task));
  need_option(!flags.data.empty(), "--data");
  need_option(!flags.predictions.empty(), "--predictions");
  if (flags.limit < 0)
    throw ConfigError(rule_got_fix("--limit must be 0 or above.", concat(flags.limit), "--limit 0 (the default)"));
  if (!flags.null_odds.empty() && !task.has_null_odds)
    throw ConfigError(rule_got_fix("--null-odds is for squad2.", flags.task,
                                   "leave --null-odds out, or give squad2's files with --task squad2"));
  if (flags.null_threshold != PredictionFlags().null_threshold && flags.null_odds.empty())
    throw ConfigError(
        rule_got_fix("--null-threshold needs --null-odds.", "none", "leave --null-threshold out, or give --null-odds"));
  const std::string report = task.report({.data = flags.data,
                                          .predictions = flags.predictions,
                                          .null_odds = flags.null_odds,
                                          .null_threshold = flags.null_threshold,
                                          .limit = flags.limit},
                                         [](const std::string& note) { write_line(stderr, note); });
  if (flags.json)
    print_json(nlohmann::ordered_json::parse(report));
  else
    print_text(report);
  return kDone;
}

}  // namespace megatron::app
