#include "megatron/tasks/task.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/tasks/pair_rows.h"
#include "megatron/tasks/scores/metrics.h"
#include "megatron/tasks/scores/prediction_files.h"
#include "megatron/tasks/scores/span_decoding.h"
#include "megatron/tasks/scores/squad_scores.h"
#include "megatron/tasks/squad_features.h"

namespace megatron::tasks {
namespace {

/// The first `limit` of `examples`; 0: all.
template <class Example>
void keep_first(std::vector<Example>& examples, std::int64_t limit) {
  if (limit > 0 && static_cast<std::size_t>(limit) < examples.size())
    examples.erase(examples.begin() + limit, examples.end());
}

BertFrame frame_of(const text::Tokenizer& tokenizer, bool bert) {
  if (bert) return bert_frame(tokenizer);
  const std::int32_t end = tokenizer.eod_id();
  return {.cls = end, .sep = end, .pad = end};
}

/// What tasks with one label a sample have in common.
class LabelTask : public Task {
 public:
  LabelTask(PairRows rows, std::vector<std::int32_t> labels, int rows_a_sample, std::size_t width)
      : rows_(std::move(rows)),
        labels_(std::move(labels)),
        rows_a_sample_(static_cast<std::size_t>(rows_a_sample)),
        width_(width) {}

  std::size_t size() const override { return labels_.size(); }
  std::size_t examples() const override { return labels_.size(); }
  std::int32_t length(std::size_t sample) const override {
    std::int32_t longest = 0;
    for (std::size_t row = 0; row < rows_a_sample_; ++row)
      longest = std::max(longest, rows_.length(sample * rows_a_sample_ + row));
    return longest;
  }
  std::int32_t fill(std::size_t sample, int row, std::span<std::int32_t> ids,
                    std::span<std::int32_t> types) const override {
    return rows_.fill(sample * rows_a_sample_ + static_cast<std::size_t>(row), ids, types);
  }
  std::array<std::int64_t, 2> target(std::size_t sample) const override { return {labels_[sample], -1}; }
  bool labelled() const override { return std::ranges::find(labels_, -1) == labels_.end(); }
  std::size_t width() const override { return width_; }

 protected:
  std::vector<std::int32_t> best(std::span<const float> logits) const { return best_classes(logits, width_); }
  const std::vector<std::int32_t>& labels() const { return labels_; }

 private:
  PairRows rows_;
  std::vector<std::int32_t> labels_;
  std::size_t rows_a_sample_, width_;
};

template <class Examples, class LabelOf>
std::vector<std::int32_t> labels_of(const Examples& examples, const LabelOf& label_of) {
  std::vector<std::int32_t> labels;
  for (const auto& example : examples) labels.push_back(label_of(example));
  return labels;
}

class GlueClasses final : public LabelTask {
 public:
  GlueClasses(GlueTask task, PairExamples examples, const text::Tokenizer& tokenizer, const TaskOptions& options)
      : LabelTask(
            pair_rows(examples, tokenizer, frame_of(tokenizer, options.bert), options.seq_length, options.threads),
            labels_of(examples.examples, [](const PairExample& example) { return example.label; }), 1,
            glue_labels(task).size()),
        task_(task),
        examples_(std::move(examples)) {}

  std::string left_out() const override {
    return examples_.passed_over == 0 ? "" : concat(examples_.passed_over, " lines without a label or broken off");
  }
  TaskScores scores(std::span<const float> logits, std::optional<double>) const override {
    const auto predicted = best(logits);
    TaskScores scores{.metrics = {{"accuracy", 100 * accuracy(predicted, labels())}}};
    if (task_ == GlueTask::Qqp) scores.metrics.push_back({"f1", 100 * binary_f1(predicted, labels())});
    return scores;
  }
  std::vector<PredictionFile> predictions(std::span<const float> logits, double) const override {
    return {{"predictions.tsv", glue_predictions(examples_, task_, best(logits))}};
  }

 private:
  GlueTask task_;
  PairExamples examples_;
};

class RaceOptions final : public LabelTask {
 public:
  RaceOptions(RaceExamples examples, const text::Tokenizer& tokenizer, const TaskOptions& options)
      : LabelTask(choice_rows(examples, tokenizer, frame_of(tokenizer, options.bert), options.seq_length,
                              options.max_query_length > 0 ? options.max_query_length : 128, options.threads),
                  labels_of(examples.questions, [](const RaceQuestion& question) { return question.label; }),
                  RaceQuestion::kOptions, RaceQuestion::kOptions),
        examples_(std::move(examples)) {}

  std::string left_out() const override { return ""; }
  TaskScores scores(std::span<const float> logits, std::optional<double>) const override {
    return {.metrics = {{"accuracy", 100 * accuracy(best(logits), labels())}}};
  }
  std::vector<PredictionFile> predictions(std::span<const float> logits, double) const override {
    return {{"predictions.json", race_predictions(examples_, best(logits))}};
  }

 private:
  RaceExamples examples_;
};

class SquadSpans final : public Task {
 public:
  SquadSpans(SquadExamples examples, const text::Tokenizer& tokenizer, const TaskOptions& options)
      : examples_(std::move(examples)),
        features_(examples_, tokenizer,
                  {.seq_length = options.seq_length,
                   .doc_stride = options.doc_stride,
                   .max_query_length = options.max_query_length > 0 ? options.max_query_length : 64},
                  options.threads),
        decoding_{.n_best = options.n_best, .max_answer_tokens = options.max_answer_tokens} {
    for (std::size_t window = 0; window < features_.windows().size(); ++window)
      if (!options.to_learn || can_be_learned(question_of(window))) windows_.push_back(window);
  }

  std::size_t size() const override { return windows_.size(); }
  std::size_t examples() const override { return examples_.questions.size(); }
  std::string left_out() const override {
    const std::size_t windows = features_.windows().size() - windows_.size();
    return windows == 0 ? "" : concat(windows, " windows of questions whose answer is not where the file says");
  }
  std::int32_t length(std::size_t sample) const override {
    const std::size_t window = windows_[sample];
    return features_.context_position(window) + features_.windows()[window].count + 1;
  }
  std::int32_t fill(std::size_t sample, int, std::span<std::int32_t> ids,
                    std::span<std::int32_t> types) const override {
    return features_.fill(windows_[sample], ids, types);
  }
  std::array<std::int64_t, 2> target(std::size_t sample) const override {
    if (!labelled()) return {-1, -1};
    const auto& answers = question_of(windows_[sample]).answers;
    const SpanTarget span = answers.empty() ? SpanTarget{} : features_.target(windows_[sample], answers[0]);
    return {span.start, span.end};
  }
  bool labelled() const override { return examples_.labelled; }
  std::size_t width() const override { return 2 * static_cast<std::size_t>(features_.options().seq_length); }

  TaskScores scores(std::span<const float> logits, std::optional<double> null_threshold) const override {
    const auto decoded = decode(logits, 0);
    std::vector<std::string_view> texts;
    std::vector<double> null_odds;
    for (const DecodedAnswer& answer : decoded) {
      texts.push_back(answer.text);
      null_odds.push_back(answer.null_odds);
    }
    const auto matches = match_answers(examples_, texts);
    if (examples_.version == SquadVersion::V1) {
      const SquadScores squad = squad_scores(examples_, matches);
      return {.metrics = {{"f1", squad.all.f1}, {"exact_match", squad.all.exact}},
              .report = squad_report(examples_.version, squad, {})};
    }
    const NullThresholds best = best_null_thresholds(examples_, matches, texts, null_odds);
    const double threshold = null_threshold.value_or(best.f1.threshold);
    const SquadScores squad = squad_scores(examples_, with_null_threshold(examples_, matches, null_odds, threshold));
    return {.metrics = {{"f1", squad.all.f1}, {"exact", squad.all.exact}},
            .null_threshold = threshold,
            .report = squad_report(examples_.version, squad, best)};
  }

  std::vector<PredictionFile> predictions(std::span<const float> logits, double null_threshold) const override {
    const auto decoded = decode(logits, null_threshold);
    std::vector<PredictionFile> files{{"predictions.json", squad_predictions(examples_, decoded)},
                                      {"nbest_predictions.json", squad_n_best(examples_, decoded)}};
    if (examples_.version == SquadVersion::V2) files.push_back({"null_odds.json", squad_null_odds(examples_, decoded)});
    return files;
  }

 private:
  const SquadQuestion& question_of(std::size_t window) const {
    return examples_.questions[static_cast<std::size_t>(features_.windows()[window].question)];
  }
  static bool can_be_learned(const SquadQuestion& question) {
    return question.answers.empty() || question.answers[0].begin != SquadAnswer::kNowhere;
  }

  /// All windows must be samples.
  std::vector<DecodedAnswer> decode(std::span<const float> logits, double null_threshold) const {
    const std::size_t row = width() / 2;
    std::vector<float> starts, ends;
    starts.reserve(size() * row);
    ends.reserve(size() * row);
    for (std::size_t sample = 0; sample < size(); ++sample) {
      const auto both = logits.subspan(sample * width(), width());
      starts.insert(starts.end(), both.begin(), both.begin() + static_cast<std::ptrdiff_t>(row));
      ends.insert(ends.end(), both.begin() + static_cast<std::ptrdiff_t>(row), both.end());
    }
    SpanDecodingOptions options = decoding_;
    options.null_threshold = null_threshold;
    return decode_spans(features_, starts, ends, options);
  }

  SquadExamples examples_;
  SquadFeatures features_;
  SpanDecodingOptions decoding_;
  std::vector<std::size_t> windows_;  // of the features, that are samples
};

std::unique_ptr<const Task> open_unchecked(const std::filesystem::path& path, const text::Tokenizer& tokenizer,
                                           const TaskOptions& options) {
  switch (options.kind) {
    case TaskKind::Mnli:
    case TaskKind::Qqp: {
      const GlueTask glue = options.kind == TaskKind::Mnli ? GlueTask::Mnli : GlueTask::Qqp;
      PairExamples examples = read_glue(path, glue);
      keep_first(examples.examples, options.limit);
      return std::make_unique<GlueClasses>(glue, std::move(examples), tokenizer, options);
    }
    case TaskKind::Race: {
      RaceExamples examples = read_race(path);
      keep_first(examples.questions, options.limit);
      return std::make_unique<RaceOptions>(std::move(examples), tokenizer, options);
    }
    default: {
      SquadExamples examples = read_squad(path, options.kind == TaskKind::Squad1 ? SquadVersion::V1 : SquadVersion::V2);
      keep_first(examples.questions, options.limit);
      return std::make_unique<SquadSpans>(std::move(examples), tokenizer, options);
    }
  }
}

}  // namespace

TaskKind task_kind_of(std::string_view name) {
  if (name == "mnli") return TaskKind::Mnli;
  if (name == "qqp") return TaskKind::Qqp;
  if (name == "squad1") return TaskKind::Squad1;
  if (name == "squad2") return TaskKind::Squad2;
  if (name == "race") return TaskKind::Race;
  throw ConfigError(rule_got_fix("the task must be mnli, qqp, squad1, squad2 or race.",
                                 name.empty() ? "none" : std::string(name), "--task mnli"));
}

TaskForm task_form(TaskKind kind) {
  const auto classes = [](GlueTask task) { return static_cast<std::int64_t>(glue_labels(task).size()); };
  if (kind == TaskKind::Mnli) return {"classes", classes(GlueTask::Mnli), 1, 1, "accuracy"};
  if (kind == TaskKind::Qqp) return {"classes", classes(GlueTask::Qqp), 1, 1, "accuracy"};
  if (kind == TaskKind::Race) return {"options", 0, RaceQuestion::kOptions, 1, "accuracy"};
  return {"span", 0, 1, 2, "f1"};
}

std::vector<std::string> task_labels(TaskKind kind) {
  if (kind == TaskKind::Mnli) return glue_labels(GlueTask::Mnli);
  return kind == TaskKind::Qqp ? glue_labels(GlueTask::Qqp) : std::vector<std::string>();
}

std::unique_ptr<const Task> open_task(const std::filesystem::path& path, const text::Tokenizer& tokenizer,
                                      const TaskOptions& options) {
  auto task = open_unchecked(path, tokenizer, options);
  if (task->size() == 0)
    throw ConfigError(rule_got_fix(path.string() + " must hold examples.", "none", "name the published file"));
  if (options.to_learn && !task->labelled())
    throw ConfigError(rule_got_fix(path.string() + " must have a label for each example.", "some have none",
                                   "name the file to train on: test files have no labels"));
  return task;
}

}  // namespace megatron::tasks
