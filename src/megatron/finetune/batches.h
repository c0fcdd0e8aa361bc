#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "megatron/model/transformer_stage.h"
#include "megatron/plan/rules.h"
#include "megatron/tasks/task.h"

namespace megatron::finetune {

/// One sample of a microbatch.
struct Item {
  static constexpr std::int64_t kNone = -1;
  std::int64_t sample = kNone;  ///< of the task; kNone: a row that has no part in the loss
  std::int64_t id = 0;  ///< by which dropout knows it: its place in the run, as it is seen again in later epochs
};

/// The order in which a run reads a task: each epoch every sample once, shuffled by (seed, epoch) alone.
class SampleOrder {
 public:
  /// `epochs`, which need not be whole, make `total` = the samples of the run.
  SampleOrder(std::int64_t samples, double epochs, std::uint64_t seed);

  std::int64_t total() const { return total_; }
  /// The item at `place` of the run; beyond its end kNone. Places that ascend cost nothing; another epoch is shuffled
  /// when it is asked for.
  Item at(std::int64_t place);

 private:
  void shuffle(std::int64_t epoch);

  std::int64_t samples_, total_, epoch_ = -1;
  std::uint64_t seed_;
  std::vector<std::int64_t> order_;  // of epoch_
};

struct BatchOptions {
  std::int64_t seq_length = 128;  ///< the longest row
  bool pad_to_longest = true;     ///< rows are as long as the longest, not seq_length
  std::int64_t unit = 8;          ///< then a multiple of this
  bool token_types = true;        ///< the model has them
  std::int64_t vocab = 0;         ///< ids that the model knows
};

/// Of the rows of a run.
BatchOptions batch_options(const plan::ResolvedRun& run, bool pad_to_longest);

/// Makes microbatches of a task's samples, on the CPU: key lengths, targets, and of a sample with several rows
/// (options) these one after the other. Safe to call from several threads.
class TaskBatches {
 public:
  /// Keeps a reference to `task`.
  TaskBatches(const tasks::Task& task, const tasks::TaskForm& form, const BatchOptions& options)
      : task_(task), form_(form), options_(options) {}

  /// How long the rows of a microbatch are where `items` have to fit into it.
  std::int64_t row_length(std::span<const Item> items) const;

  /// `items`: one at least. `length`: row_length() of these and others. Which numbers the dropout of attention draws
  /// depends on it: in training it is that of the whole step, which is the same in every layout. Throws ConfigError for
  /// a token that the model does not know.
  model::Batch get(std::span<const Item> items, std::int64_t length) const;

  const tasks::Task& task() const { return task_; }

 private:
  const tasks::Task& task_;
  tasks::TaskForm form_;
  BatchOptions options_;
};

}  // namespace megatron::finetune
