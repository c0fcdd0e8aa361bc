#include "megatron/train/log/run_log.h"

#include <sys/resource.h>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/train/log/console.h"

namespace megatron::train {
namespace {

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

RunLog::RunLog(const plan::ResolvedRun& run, const RunState& start, std::FILE* console)
    : run_(run),
      console_(console),
      metrics_(std::filesystem::path(run.config.train.out) / "metrics.jsonl", start.iteration,
               start.validated_iteration),
      progress_("train", "steps", run.config.train.train_iters, Progress::mode_of(run.config.log.progress)) {
  progress_.start_at(start.iteration);
  if (run.config.train.matmul_precision == "high")
    message(kernels::matmul_precision() == "high"
                ? "matmul precision: high, three bf16 products of AMX for one of float32 (error 4e-6 instead of 4e-7)"
                : "matmul precision: highest; train.matmul_precision = high has no effect, as this machine has no AMX");
}

void RunLog::iteration(const RunState& state, const Iteration& done) {
  const StepResult& result = done.result;
  const std::int64_t samples = done.global_batch,
                     tokens = done.tokens > 0 ? done.tokens : samples * run_.config.data.seq_length;
  const double tokens_per_s = static_cast<double>(tokens) / done.step_s;
  metrics_.write(IterationMetrics{.iteration = state.iteration,
                                  .consumed_samples = state.consumed_samples,
                                  .loss = result.loss,
                                  .grad_norm = result.grad_norm,
                                  .sentence_loss = result.sentence_loss,
                                  .learning_rate = done.rates.usual,
                                  .decoupled_learning_rate = decoupled(done.rates),
                                  .loss_scale = result.loss_scale,
                                  .tokens_per_s = tokens_per_s,
                                  .step_ms = 1e3 * done.step_s,
                                  .data_wait_ms = 1e3 * done.data_wait_s,
                                  .peak_memory_bytes = peak_memory_bytes(),
                                  .skipped = result.skipped,
                                  .high_matmul_precision = kernels::matmul_precision() == "high"});
  ++interval_.iterations;
  interval_.seconds += done.step_s;
  interval_.flops += plan::training_flops(run_.shape, samples, tokens / samples, run_.config.data.decoder_seq_length);
  if (result.skipped) {
    ++interval_.skipped;
  } else {
    const double sentences = result.sentence_loss.value_or(0);
    interval_.loss += result.loss - sentences;
    interval_.sentence_loss += sentences;
  }
  if (!std::isfinite(result.loss)) ++interval_.nan;
  const bool last = state.iteration == run_.config.train.train_iters || result.stop;
  if (last || state.iteration % run_.config.log.interval == 0) print_iteration(state, done);
  progress_.update(state.iteration,
                   concat("loss ", std::round(1e4 * result.loss) / 1e4, "  ", human_count(tokens_per_s), " tokens/s"));
}

std::optional<double> RunLog::decoupled(const plan::LearningRates& rates) const {
  return run_.config.schedule.decoupled_lr > 0 ? std::optional(rates.words) : std::nullopt;
}

void RunLog::print_iteration(const RunState& state, const Iteration& done) {
  const auto counted = static_cast<double>(interval_.iterations - interval_.skipped);
  print(iteration_line({.iteration = state.iteration,
                        .train_iters = run_.config.train.train_iters,
                        .consumed_samples = state.consumed_samples,
                        .step_ms = 1e3 * interval_.seconds / static_cast<double>(interval_.iterations),
                        .tflops_per_rank = interval_.flops / interval_.seconds / 1e12 / run_.grid.world_size(),
                        .learning_rate = done.next_rates.usual,
                        .decoupled_learning_rate = decoupled(done.next_rates),
                        .global_batch = done.global_batch,
                        .loss = counted > 0 ? interval_.loss / counted : 0,
                        .sentence_loss = counted > 0 ? interval_.sentence_loss / counted : 0,
                        .loss_scale = done.result.loss_scale,
                        .grad_norm = done.result.grad_norm,
                        .skipped = interval_.skipped,
                        .nan = interval_.nan},
                       now_us()));
  interval_ = {};
}

void RunLog::evaluated(const RunState& state, const Evaluation& evaluation, const std::string& set, bool test) {
  metrics_.write(ValidationMetrics{.iteration = state.iteration,
                                   .consumed_samples = state.consumed_samples,
                                   .loss = evaluation.loss,
                                   .perplexity = evaluation.perplexity(),
                                   .sentence_loss = evaluation.sentence_loss,
                                   .set = set,
                                   .test = test});
  const std::string place = concat("iteration ", state.iteration,
                                   test          ? " on test set"
                                   : set.empty() ? ""
                                                 : " on " + set);
  print(validation_lines(place, evaluation.token_loss(), evaluation.perplexity(), evaluation.sentence_loss));
}

void RunLog::validation(const RunState& state, const Evaluation& evaluation, const std::string& set) {
  evaluated(state, evaluation, set, /*test=*/false);
}

void RunLog::test(const RunState& state, const Evaluation& evaluation) {
  evaluated(state, evaluation, "", /*test=*/true);
}

void RunLog::scores(const RunState& state, double loss, const std::vector<tasks::Metric>& metrics) {
  metrics_.write(TaskMetrics{
      .iteration = state.iteration, .consumed_samples = state.consumed_samples, .loss = loss, .scores = metrics});
  std::string line = concat(" validation at iteration ", state.iteration, " | loss: ", loss, " |");
  for (const tasks::Metric& metric : metrics)
    line += concat(" ", metric.name, ": ", std::round(100 * metric.value) / 100, " |");
  print(line);
}

void RunLog::message(const std::string& text) { print(text); }

void RunLog::print(const std::string& text) {
  if (is_terminal(stderr))
    std::fputs(kEraseLine, stderr);  // the progress line, which is drawn again with the next step
  write_line(console_, text);
}

}  // namespace megatron::train
