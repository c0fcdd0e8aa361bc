#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/timer.h"
#include "megatron/tasks/pair_rows.h"
#include "megatron/tasks/scores/metrics.h"
#include "megatron/tasks/task_info.h"

// What families of tasks have in common.
namespace megatron::tasks {

/// The first `limit` of `examples`; 0: all.
template <class Example>
void keep_first(std::vector<Example>& examples, std::int64_t limit) {
  if (limit > 0 && static_cast<std::size_t>(limit) < examples.size())
    examples.erase(examples.begin() + limit, examples.end());
}

/// Throws ConfigError unless each example has a label.
inline void need_labels(bool labelled, const std::string& data) {
  if (!labelled)
    throw ConfigError(rule_got_fix(data + " must have a label for each example.", "some have none",
                                   "--data FILE, the published one that has labels; those of test sets have none"));
}

/// The examples that `read` gives, and the time that it takes.
template <class Read>
auto read_timed(const Read& read, TaskRows& rows) {
  const Stopwatch watch;
  auto examples = std::make_shared<const decltype(read())>(read());
  rows.read_s = watch.seconds();
  return examples;
}

/// What frames rows; of a model that has no frame of its own the end of a text.
inline BertFrame frame_of(const text::Tokenizer& tokenizer, bool frames_pairs) {
  if (frames_pairs) return bert_frame(tokenizer);
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

/// {"accuracy", "f1", "total"} of predicted classes, in percent.
inline std::string class_report(const std::vector<std::int32_t>& predicted, const std::vector<std::int32_t>& labels,
                                bool f1) {
  nlohmann::ordered_json report = {{"accuracy", 100 * accuracy(predicted, labels)}};
  if (f1) report["f1"] = 100 * binary_f1(predicted, labels);
  report["total"] = labels.size();
  return report.dump(2) + "\n";
}

template <class Examples, class LabelOf>
std::vector<std::int32_t> labels_of(const Examples& examples, const LabelOf& label_of) {
  std::vector<std::int32_t> labels;
  for (const auto& example : examples) labels.push_back(label_of(example));
  return labels;
}

}  // namespace megatron::tasks
