#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/progress.h"
#include "megatron/plan/rules.h"
#include "megatron/tasks/scores/metrics.h"
#include "megatron/train/log/event_file.h"
#include "megatron/train/log/metrics.h"
#include "megatron/train/log/timers.h"
#include "megatron/train/log/wandb_file.h"
#include "megatron/train/resume/run_state.h"
#include "megatron/train/step.h"

namespace megatron::train {

/// Whether no token of the step's batch counts, so that the mean over them is none (and `loss` 0).
inline bool has_no_loss(const StepResult& result) { return result.tokens == 0 && !result.sentence_loss; }

/// What one rank of the run (the first) prints and writes: a console line every log.interval iterations on stdout, an
/// object in metrics.jsonl for each and its curves for TensorBoard and W&B, a progress line with the time left on a
/// terminal's stderr.
class RunLog {
 public:
  /// Opens train.out/metrics.jsonl and an event file for a run that resumes after `start`: what it does again is
  /// taken out of them, nothing with train.skip_train. Keeps a reference to `run`. Lines go to `console`.
  RunLog(const plan::ResolvedRun& run, const RunState& start, std::FILE* console = stdout,
         MetricsFile::RequireFolder require_folder = {});

  struct Iteration {
    StepResult result;
    double step_s = 0, data_wait_s = 0;
    std::int64_t global_batch = 0;         ///< samples
    plan::LearningRates rates = 0.0;       ///< that it used
    plan::LearningRates next_rates = 0.0;  ///< after the schedule's step
    std::int64_t tokens = 0;               ///< of all samples; 0: each has data.seq_length
    // Of all ranks, where that was asked for:
    std::optional<TimesOverRanks> times = {};      ///< of the steps since the last console line
    std::vector<std::vector<double>> memory = {};  ///< [rank]: bytes now, and at most so far
  };
  /// Whether iteration() prints a console line after `state`: the same on every rank.
  static bool prints(const plan::ResolvedRun& run, const RunState& state, const StepResult& result);
  /// `state` is the one after the iteration.
  void iteration(const RunState& state, const Iteration& done);
  /// The batch before `state` was skipped without being computed.
  void skipped_batch(const RunState& state, std::int64_t global_batch);
  /// Metrics of the iteration that was logged last; none before the first.
  const std::optional<IterationMetrics>& last() const { return last_; }
  /// `set`: of several validation sets, which; empty: there is one.
  void validation(const RunState& state, const Evaluation& evaluation, const std::string& set);
  void test(const RunState& state, const Evaluation& evaluation);
  /// What a task's validation came to, in percent, the loss being that of its samples.
  void scores(const RunState& state, double loss, const std::vector<tasks::Metric>& metrics);
  /// Of metrics.jsonl, when it was opened.
  std::int64_t lines_taken_out() const { return metrics_.lines_taken_out(); }
  /// A line of its own, e.g. where the run resumes.
  void message(const std::string& text);

 private:
  void print(const std::string& text);
  std::optional<double> decoupled(const plan::LearningRates& rates) const;
  void draw(const RunState& state, const std::vector<Scalar>& curves);
  void evaluated(const RunState& state, const Evaluation& evaluation, const std::string& set, bool test);
  void print_interval(const RunState& state, const Iteration& done, const IterationMetrics& metrics);
  void print_iteration(const RunState& state, const Iteration& done);
  void tell_without_loss(const RunState& state);
  void print_memory(const RunState& state, const std::vector<std::vector<double>>& memory);

  struct Interval {
    std::int64_t iterations = 0, skipped = 0, nan = 0;
    std::int64_t without_loss = 0;     // of `iterations`
    std::int64_t skipped_batches = 0;  // iterations that computed nothing, besides `iterations`
    double loss = 0, sentence_loss = 0, seconds = 0, flops = 0, tokens = 0;
    std::vector<double> depth_losses = {};
    std::vector<LossFigure> figures = {};  // sums
  };
  const plan::ResolvedRun& run_;
  std::FILE* console_;
  MetricsFile metrics_;
  std::optional<EventFile> events_;
  std::optional<WandbFile> wandb_;
  std::optional<IterationMetrics> last_;
  Interval interval_;  // since the last console line
  bool told_without_loss_ = false;
  Progress progress_;
};

}  // namespace megatron::train
