#include "megatron/base/files/file.h"
#include "megatron/tasks/families/common.h"
#include "megatron/tasks/scores/prediction_files.h"

namespace megatron::tasks {
namespace {

class GlueClasses final : public LabelTask {
 public:
  GlueClasses(GlueTask task, PairExamples examples, const text::Tokenizer& tokenizer, const TaskOptions& options)
      : LabelTask(pair_rows(examples, tokenizer, frame_of(tokenizer, options.frames_pairs), options.seq_length,
                            options.threads),
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

template <GlueTask task>
std::vector<std::string> labels() {
  return glue_labels(task);
}

template <GlueTask task>
std::unique_ptr<const Task> open_glue(const std::filesystem::path& path, const text::Tokenizer& tokenizer,
                                      const TaskOptions& options) {
  PairExamples examples = read_glue(path, task);
  keep_first(examples.examples, options.limit);
  return std::make_unique<GlueClasses>(task, std::move(examples), tokenizer, options);
}

template <GlueTask task>
TaskRows glue_rows(const std::filesystem::path& path, const text::Tokenizer& tokenizer, const TaskOptions& options) {
  TaskRows rows;
  const auto examples = read_timed([&] { return read_glue(path, task); }, rows);
  const Stopwatch watch;
  const auto pairs = std::make_shared<const PairRows>(
      pair_rows(*examples, tokenizer, bert_frame(tokenizer), options.seq_length, options.threads));
  rows.encode_s = watch.seconds();
  rows.examples = static_cast<std::int64_t>(examples->examples.size());
  rows.count = pairs->size();
  rows.fill = [pairs](auto row, auto ids, auto types) { return pairs->fill(row, ids, types); };
  rows.describe = [examples](std::size_t row) {
    const PairExample& example = examples->examples[row];
    return nlohmann::ordered_json{{"id", example.id}, {"label", example.label}};
  };
  return rows;
}

template <GlueTask task>
std::string glue_report(const PredictionPaths& paths, const std::function<void(const std::string&)>&) {
  auto examples = read_glue(paths.data, task);
  keep_first(examples.examples, paths.limit);
  const auto labels = labels_of(examples.examples, [](const PairExample& example) { return example.label; });
  need_labels(std::ranges::find(labels, -1) == labels.end(), paths.data);
  const auto predicted = parse_glue_predictions(read_file(paths.predictions), paths.predictions, examples, task);
  return class_report(predicted, labels, task == GlueTask::Qqp);
}

template <GlueTask task>
constexpr TaskInfo glue_info(std::int64_t num_classes) {
  return {.form = {"classes", num_classes, 1, 1, "accuracy"},
          .labels = labels<task>,
          .open = open_glue<task>,
          .rows = glue_rows<task>,
          .report = glue_report<task>};
}

}  // namespace

extern const TaskInfo kMnli, kQqp;
constinit const TaskInfo kMnli = glue_info<GlueTask::Mnli>(3), kQqp = glue_info<GlueTask::Qqp>(2);

}  // namespace megatron::tasks
