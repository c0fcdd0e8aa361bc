#include "megatron/base/files/file.h"
#include "megatron/tasks/families/common.h"
#include "megatron/tasks/scores/prediction_files.h"

namespace megatron::tasks {
namespace {

int question_length(const TaskOptions& options) {
  return options.max_query_length > 0 ? options.max_query_length : usual_query_length(TaskKind::Race);
}

/// Of all questions, and where there are questions of both schools also of each: "RACE m/h".
std::vector<Metric> race_metrics(const RaceExamples& examples, std::span<const std::int32_t> predicted) {
  std::vector<Metric> metrics;
  for (const auto& [name, level] : {std::pair{"accuracy", RaceLevel::Unknown},
                                    {"accuracy_middle", RaceLevel::Middle},
                                    {"accuracy_high", RaceLevel::High}}) {
    std::vector<std::int32_t> chosen, right;
    for (std::size_t i = 0; i < examples.questions.size(); ++i)
      if (level == RaceLevel::Unknown || examples.questions[i].level == level) {
        chosen.push_back(predicted[i]);
        right.push_back(examples.questions[i].label);
      }
    if (level != RaceLevel::Unknown && chosen.empty()) return {metrics.front()};
    metrics.push_back({name, 100 * accuracy(chosen, right)});
  }
  return metrics;
}

class RaceOptions final : public LabelTask {
 public:
  RaceOptions(RaceExamples examples, const text::Tokenizer& tokenizer, const TaskOptions& options)
      : LabelTask(choice_rows(examples, tokenizer, frame_of(tokenizer, options.frames_pairs), options.seq_length,
                              question_length(options), options.threads),
                  labels_of(examples.questions, [](const RaceQuestion& question) { return question.label; }),
                  RaceQuestion::kOptions, RaceQuestion::kOptions),
        examples_(std::move(examples)) {}

  std::string left_out() const override { return ""; }
  TaskScores scores(std::span<const float> logits, std::optional<double>) const override {
    return {.metrics = race_metrics(examples_, best(logits))};
  }
  std::vector<PredictionFile> predictions(std::span<const float> logits, double) const override {
    return {{"predictions.json", race_predictions(examples_, best(logits))}};
  }

 private:
  RaceExamples examples_;
};

std::unique_ptr<const Task> open_race(const std::filesystem::path& path, const text::Tokenizer& tokenizer,
                                      const TaskOptions& options) {
  RaceExamples examples = read_race(path);
  keep_first(examples.questions, options.limit);
  return std::make_unique<RaceOptions>(std::move(examples), tokenizer, options);
}

TaskRows race_rows(const std::filesystem::path& path, const text::Tokenizer& tokenizer, const TaskOptions& options) {
  TaskRows rows;
  const auto examples = read_timed([&] { return read_race(path); }, rows);
  const Stopwatch watch;
  const auto choices = std::make_shared<const PairRows>(choice_rows(
      *examples, tokenizer, bert_frame(tokenizer), options.seq_length, question_length(options), options.threads));
  rows.encode_s = watch.seconds();
  rows.examples = static_cast<std::int64_t>(examples->questions.size());
  rows.count = choices->size();
  rows.fill = [choices](auto row, auto ids, auto types) { return choices->fill(row, ids, types); };
  rows.describe = [examples](std::size_t row) {
    const RaceQuestion& question = examples->questions[row / RaceQuestion::kOptions];
    return nlohmann::ordered_json{
        {"id", question.id}, {"option", row % RaceQuestion::kOptions}, {"label", question.label}};
  };
  return rows;
}

std::string race_report(const PredictionPaths& paths, const std::function<void(const std::string&)>&) {
  auto examples = read_race(paths.data);
  keep_first(examples.questions, paths.limit);
  const auto labels = labels_of(examples.questions, [](const RaceQuestion& question) { return question.label; });
  need_labels(std::ranges::find(labels, -1) == labels.end(), paths.data);
  const auto predicted = parse_race_predictions(read_file(paths.predictions), paths.predictions, examples);
  nlohmann::ordered_json report;
  for (const Metric& metric : race_metrics(examples, predicted)) report[metric.name] = metric.value;
  report["total"] = labels.size();
  return report.dump(2) + "\n";
}

}  // namespace

extern const TaskInfo kRace;
constinit const TaskInfo kRace{.form = {"options", 0, RaceQuestion::kOptions, 1, "accuracy"},
                               .open = open_race,
                               .rows = race_rows,
                               .report = race_report};

}  // namespace megatron::tasks
