#include <algorithm>
#include <cstdio>
#include <optional>
#include <string_view>

#include "app/eval/jobs.h"
#include "app/flags.h"
#include "app/json_line.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/config/options.h"
#include "megatron/tasks/scores/metrics.h"
#include "megatron/tasks/scores/prediction_files.h"
#include "megatron/tasks/scores/squad_scores.h"
#include "megatron/tasks/task.h"

// `megatron eval predictions`: what a finished file of predictions scores, without a model.
namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron eval predictions --task mnli|qqp|squad1|squad2|race --data F --predictions F [--null-odds F]\n\n"
    "What predictions score against the task's file, in percent: of SQuAD as the official scripts report it.";

struct PredictionFlags {
  std::string task, data, predictions, null_odds;
  std::int64_t limit = 0;
  double null_threshold = 1;
  bool json = false;

  void visit(auto& v) {
    v("task", task, "Task.", config::Required(), config::Choices({"mnli", "qqp", "squad1", "squad2", "race"}));
    v("data", data, "The task's file as it is published, with labels; race: also a folder.", config::Required());
    v("predictions", predictions, "predictions.json; for mnli and qqp also predictions.tsv.", config::Required());
    v("limit", limit, "Only the first N examples, as in the run that predicted them; 0: all.");
    v("null_odds", null_odds, "squad2: null_odds.json, for the best thresholds.");
    v("null_threshold", null_threshold, "squad2: questions whose null odds are above this are not answered.");
    v("json", json, "Print one JSON object on one line.");
  }
};

std::string class_report(const std::vector<std::int32_t>& predicted, const std::vector<std::int32_t>& labels, bool f1) {
  nlohmann::ordered_json report = {{"accuracy", 100 * tasks::accuracy(predicted, labels)}};
  if (f1) report["f1"] = 100 * tasks::binary_f1(predicted, labels);
  report["total"] = labels.size();
  return report.dump(2) + "\n";
}

void need_labels(bool labelled, const std::string& data) {
  if (!labelled)
    throw ConfigError(rule_got_fix(data + " must have a label for each example.", "some have none",
                                   "--data FILE, the published one that has labels; those of test sets have none"));
}

/// What a run with --limit has predicted.
template <class Example>
void keep_first(std::vector<Example>& examples, std::int64_t limit) {
  if (limit > 0 && static_cast<std::size_t>(limit) < examples.size())
    examples.erase(examples.begin() + limit, examples.end());
}

std::string glue_report(const PredictionFlags& flags, tasks::GlueTask task) {
  auto examples = tasks::read_glue(flags.data, task);
  keep_first(examples.examples, flags.limit);
  std::vector<std::int32_t> labels;
  for (const auto& example : examples.examples) {
    need_labels(example.label >= 0, flags.data);
    labels.push_back(example.label);
  }
  const auto text = read_file(flags.predictions);
  return class_report(tasks::parse_glue_predictions(text, flags.predictions, examples, task), labels,
                      task == tasks::GlueTask::Qqp);
}

std::string race_report(const PredictionFlags& flags) {
  auto examples = tasks::read_race(flags.data);
  keep_first(examples.questions, flags.limit);
  std::vector<std::int32_t> labels;
  for (const auto& question : examples.questions) {
    need_labels(question.label >= 0, flags.data);
    labels.push_back(question.label);
  }
  return class_report(tasks::parse_race_predictions(read_file(flags.predictions), flags.predictions, examples), labels,
                      false);
}

std::string squad_report(const PredictionFlags& flags, tasks::SquadVersion version) {
  auto examples = tasks::read_squad(flags.data, version);
  keep_first(examples.questions, flags.limit);
  need_labels(examples.labelled, flags.data);
  const auto answers = tasks::parse_squad_predictions(read_file(flags.predictions), flags.predictions, examples);
  const std::vector<std::string_view> views(answers.texts.begin(), answers.texts.end());
  auto matches = tasks::match_answers(examples, views);
  for (std::size_t i = 0; i < matches.size(); ++i)
    if (!answers.found[i]) matches[i] = {};
  if (const auto missing = std::ranges::count(answers.found, false); missing > 0)
    std::fprintf(stderr, "%lld questions have no answer\n", static_cast<long long>(missing));
  if (flags.null_odds.empty()) return tasks::squad_report(version, tasks::squad_scores(examples, matches), {});
  const auto odds = tasks::parse_squad_null_odds(read_file(flags.null_odds), flags.null_odds, examples);
  const auto kept = tasks::with_null_threshold(examples, matches, odds, flags.null_threshold);
  return tasks::squad_report(version, tasks::squad_scores(examples, kept),
                             tasks::best_null_thresholds(examples, matches, views, odds));
}

}  // namespace

int eval_predictions(const Args& args) {
  PredictionFlags flags;
  no_words(config::parse_command_line(flags, args, kUsage));
  const tasks::TaskKind kind = tasks::task_kind_of(flags.task);
  need_option(!flags.data.empty(), "--data");
  need_option(!flags.predictions.empty(), "--predictions");
  if (flags.limit < 0)
    throw ConfigError(rule_got_fix("--limit must be 0 or above.", concat(flags.limit), "--limit 0 (the default)"));
  if (!flags.null_odds.empty() && kind != tasks::TaskKind::Squad2)
    throw ConfigError(rule_got_fix("--null-odds is for squad2.", flags.task,
                                   "leave --null-odds out, or give squad2's files with --task squad2"));
  if (flags.null_threshold != PredictionFlags().null_threshold && flags.null_odds.empty())
    throw ConfigError(
        rule_got_fix("--null-threshold needs --null-odds.", "none", "leave --null-threshold out, or give --null-odds"));
  const std::string report = kind == tasks::TaskKind::Mnli     ? glue_report(flags, tasks::GlueTask::Mnli)
                             : kind == tasks::TaskKind::Qqp    ? glue_report(flags, tasks::GlueTask::Qqp)
                             : kind == tasks::TaskKind::Race   ? race_report(flags)
                             : kind == tasks::TaskKind::Squad1 ? squad_report(flags, tasks::SquadVersion::V1)
                                                               : squad_report(flags, tasks::SquadVersion::V2);
  if (flags.json)
    print_json(nlohmann::ordered_json::parse(report));
  else
    std::fputs(report.c_str(), stdout);
  return kDone;
}

}  // namespace megatron::app
