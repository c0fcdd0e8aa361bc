#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tasks/scores/metrics.h"
#include "megatron/text/tokenizer.h"

// A fine-tuning task as training sees it: samples of one or more rows, a target each, and what logits come to.
namespace megatron::tasks {

/// The rows of config/tables/tasks.def, in their order.
enum class TaskKind : std::uint8_t {
#define TASK(name, id, ...) id,
#include "megatron/config/tables/tasks.def"
};

/// Of the name that a row has. Throws ConfigError for another.
TaskKind task_kind_of(std::string_view name);

/// What a model must have for a task.
struct TaskForm {
  const char* head;          ///< model.head: classes, options, span
  std::int64_t num_classes;  ///< model.num_classes
  int rows;                  ///< of a sample
  int targets;               ///< of a sample: one number, or the first and last token of a span
  const char* metric;        ///< by which the best weights are chosen: more is better
};
TaskForm task_form(TaskKind kind);

/// The names of its classes, in the order of their numbers; of other tasks none.
std::vector<std::string> task_labels(TaskKind kind);

/// Tokens of a row, and of a question (0: it has no length of its own), where no option says otherwise.
int usual_seq_length(TaskKind kind);
int usual_query_length(TaskKind kind);

struct TaskOptions {
  TaskKind kind = {};
  bool frames_pairs =
      true;  ///< rows are [CLS] first [SEP] second [SEP]; else the end of a text stands for each of these
  int seq_length = 128;
  int doc_stride = 128;
  int max_query_length = 0;  ///< 0: usual_query_length()
  int n_best = 20, max_answer_tokens = 30;
  std::int64_t limit = 0;  ///< the first examples alone; 0: all
  bool to_learn = false;   ///< labels must be there, and what cannot be learned from is left out
  int threads = 1;
};

/// What logits are worth.
struct TaskScores {
  std::vector<Metric> metrics = {};  ///< TaskForm::metric first
  double null_threshold = 0;         ///< SQuAD 2.0: the one given, or that with the best F1
  std::string report = {};           ///< of SQuAD: as the official script writes it
};

/// A file of predictions by the name that the official scripts and servers know it by.
struct PredictionFile {
  std::string name, text;
};

class Task {
 public:
  virtual ~Task() = default;

  virtual std::size_t size() const = 0;  ///< samples: examples, or windows of contexts
  virtual std::size_t examples() const = 0;
  /// What is not among the samples, for the log; empty: nothing.
  virtual std::string left_out() const = 0;
  /// Tokens of the longest row of a sample.
  virtual std::int32_t length(std::size_t sample) const = 0;
  /// Writes a row of a sample padded to the size of `ids` and `types`, which is length() or more. Returns its length.
  virtual std::int32_t fill(std::size_t sample, int row, std::span<std::int32_t> ids,
                            std::span<std::int32_t> types) const = 0;
  /// As many as TaskForm::targets; -1 where there is no label.
  virtual std::array<std::int64_t, 2> target(std::size_t sample) const = 0;
  virtual bool labelled() const = 0;

  /// Numbers of a sample's logits: classes; options; of spans those of the first token at each of seq_length
  /// positions, then those of the last.
  virtual std::size_t width() const = 0;
  /// Of `logits` [size(), width()]. The task is labelled. `null_threshold`, of SQuAD 2.0: one that was found on another
  /// set; nothing: the one that is best for this.
  virtual TaskScores scores(std::span<const float> logits, std::optional<double> null_threshold = {}) const = 0;
  virtual std::vector<PredictionFile> predictions(std::span<const float> logits, double null_threshold) const = 0;
};

/// Reads the file, or folder, of a task and encodes its texts. Throws ConfigError where a file is not what it should
/// be, the tokenizer lacks a token, nothing is left, or labels are missing that are needed.
std::unique_ptr<const Task> open_task(const std::filesystem::path& path, const text::Tokenizer& tokenizer,
                                      const TaskOptions& options);

}  // namespace megatron::tasks
