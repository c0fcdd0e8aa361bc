#include "megatron/train/log/run_log.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/checksum.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/printable.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/tasks/scores/seeds.h"
#include "megatron/train/log/console.h"
#include "megatron/train/log/scalars.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

constexpr double kNoLoss = std::numeric_limits<double>::quiet_NaN();

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What tells a run's event files from those of others that may lie in the same folder.
std::string run_id(const fs::path& out, const fs::path& events) {
  std::error_code error;
  if (events.empty() || fs::equivalent(out, events, error)) return "run";
  return fmt::format("{:08x}", crc32c(fs::absolute(out).lexically_normal().string()));
}

std::vector<IterationMetrics::Time> times_of(const std::optional<TimesOverRanks>& times, const config::LogConfig& log,
                                             std::int64_t steps) {
  std::vector<IterationMetrics::Time> all;
  if (!times || log.timing_level == 0) return all;
  const double to_ms = 1e3 / static_cast<double>(steps);
  for (std::size_t i = 0; i < times->timers.size(); ++i)
    if (const auto both = times->of(i))
      all.push_back({timer_name(times->timers[i]), both->min * to_ms, both->max * to_ms});
  return all;
}

std::optional<IterationMetrics::Straggler> straggler_of(const std::optional<TimesOverRanks>& times,
                                                        const config::LogConfig& log, std::int64_t steps) {
  if (!times || !log.straggler) return std::nullopt;
  std::vector<double> compute_s(times->seconds.front().size(), 0);
  for (std::size_t i = 0; i < times->timers.size(); ++i)
    if (times->timers[i] == TimerId::ForwardCompute || times->timers[i] == TimerId::BackwardCompute)
      for (std::size_t rank = 0; rank < compute_s.size(); ++rank) compute_s[rank] += times->seconds[i][rank];
  const auto slowest = std::ranges::max_element(compute_s);
  const int rank = static_cast<int>(slowest - compute_s.begin());
  const double to_ms = 1e3 / static_cast<double>(steps);
  return IterationMetrics::Straggler{
      .rank = rank, .compute_ms = *slowest * to_ms, .median_ms = tasks::median(compute_s) * to_ms};
}

std::vector<IterationMetrics::SlowestRank> slowest_by_timer(const std::optional<TimesOverRanks>& times,
                                                            const config::LogConfig& log, std::int64_t steps) {
  std::vector<IterationMetrics::SlowestRank> all;
  if (!times || !log.straggler) return all;
  const double to_ms = 1e3 / static_cast<double>(steps);
  for (std::size_t i = 0; i < times->timers.size(); ++i) {
    const std::vector<double>& by_rank = times->seconds[i];
    const auto slowest = std::ranges::max_element(by_rank);
    std::vector<double> timed;
    std::ranges::copy_if(by_rank, std::back_inserter(timed), [](double s) { return s > 0; });
    if (timed.size() < 2) continue;
    all.push_back({.timer = timer_name(times->timers[i]),
                   .rank = static_cast<int>(slowest - by_rank.begin()),
                   .ms = *slowest * to_ms,
                   .median_ms = tasks::median(std::move(timed)) * to_ms});
  }
  return all;
}

std::optional<ExpertMetrics> expert_metrics(const ExpertFigures& figures, const plan::ResolvedRun& run, double tokens) {
  if (figures.empty()) return std::nullopt;
  const plan::Experts& experts = *run.shape.experts;
  ExpertMetrics metrics{.layers = {},
                        .drops = experts.capacity_factor > 0,
                        .balances = experts.router.aux_loss > 0,
                        .z = experts.router.z_loss > 0,
                        .by_layer = run.config.log.moe_per_layer};
  const std::vector<std::int64_t> numbers = run.shape.expert_layers();
  const double to_mean = tokens > 0 ? 1 / tokens : 0;
  for (std::size_t l = 0; l < figures.layers(); ++l) {
    const std::span<const double> loads = figures.loads(l);
    metrics.layers.push_back({.number = numbers[l],
                              .loads = {loads.begin(), loads.end()},
                              .imbalance = figures.imbalance(l),
                              .dropped = figures.dropped_share(l),
                              .balance = figures.balance(l) * to_mean,
                              .z = figures.z(l) * to_mean});
  }
  return metrics;
}

std::optional<std::vector<int>> wrong_ranks(const StepResult& result) {
  if (!result.checked) return std::nullopt;
  std::vector<int> ranks;
  for (const supervise::Suspect& suspect : result.suspects) ranks.push_back(suspect.rank);
  return ranks;
}

/// After which nothing is done again: of a run that is evaluated alone all that it has written stays.
ResumePoint resume_point(const plan::ResolvedRun& run, const RunState& start) {
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  if (run.config.train.skip_train) return {.iteration = kAll, .samples = kAll, .validated_iteration = kAll};
  return {.iteration = start.iteration,
          .samples = start.consumed_samples,
          .validated_iteration = start.validated_iteration};
}

/// Where the tensors of this rank are, whose thread asks.
at::Device device_of(const plan::ResolvedRun& run) {
  return run.config.parallel.device == "cuda" ? at::kCUDA : at::kCPU;
}

std::string precision_text(at::Device device) {
  if (kernels::matmul_precision(device.type()) != "high")
    return "matmul precision: highest; train.matmul_precision = high has no effect, as this machine has no AMX";
  return device.is_cpu()
             ? "matmul precision: high, three bf16 products of AMX for one of float32 (error 4e-6 instead of 4e-7)"
             : "matmul precision: high, TF32 (10 bits of each mantissa are read)";
}

}  // namespace

RunLog::RunLog(const plan::ResolvedRun& run, const RunState& start, std::FILE* console,
               MetricsFile::RequireFolder require_folder)
    : run_(run),
      console_(console),
      metrics_(std::filesystem::path(run.config.train.out) / "metrics.jsonl", resume_point(run, start).iteration,
               resume_point(run, start).validated_iteration, std::move(require_folder)),
      progress_("train", "steps", run.config.train.train_iters, Progress::mode_of(run.config.log.progress)) {
  const fs::path out = run.config.train.out, events = run.config.log.tensorboard_dir;
  if (run.config.log.tensorboard)
    events_.emplace(events.empty() ? out : events, run_id(out, events), resume_point(run, start));
  if (!run.config.log.wandb_project.empty()) wandb_.emplace(run.config, resume_point(run, start));
  progress_.start_at(start.iteration);
  if (run.config.train.matmul_precision == "high") message(precision_text(device_of(run)));
}

void RunLog::iteration(const RunState& state, const Iteration& done) {
  const StepResult& result = done.result;
  const kernels::HeldMemory memory = kernels::held_memory(device_of(run_));
  const std::int64_t samples = done.global_batch,
                     tokens = done.tokens > 0 ? done.tokens : samples * run_.config.data.seq_length;
  const double tokens_per_s = static_cast<double>(tokens) / done.step_s;
  const config::LogConfig& log = run_.config.log;
  ++interval_.iterations;
  const double flops = plan::training_flops(run_.shape, samples, tokens / samples, run_.config.data.decoder_seq_length);
  const bool has_means = !has_no_loss(result);
  const IterationMetrics metrics{.iteration = state.iteration,
                                 .consumed_samples = state.consumed_samples,
                                 .loss = has_means ? result.loss : kNoLoss,
                                 .grad_norm = result.grad_norm,
                                 .sentence_loss = result.sentence_loss,
                                 .depth_losses = has_means ? result.depth_losses : std::vector<double>(),
                                 .figures = has_means ? result.figures : std::vector<LossFigure>(),
                                 .learning_rate = done.rates.usual,
                                 .decoupled_learning_rate = decoupled(done.rates),
                                 .weight_decay = done.rates.weight_decay,
                                 .loss_scale = result.loss_scale,
                                 .batch_size = samples,
                                 .world_size = run_.grid.world_size(),
                                 .tokens_per_s = tokens_per_s,
                                 .tflops_per_rank = flops / done.step_s / 1e12 / run_.grid.world_size(),
                                 .step_ms = 1e3 * done.step_s,
                                 .data_wait_ms = 1e3 * done.data_wait_s,
                                 .memory_bytes = memory.bytes,
                                 .peak_memory_bytes = memory.peak_bytes,
                                 .num_zeros = result.num_zeros,
                                 .params_norm = result.params_norm,
                                 .experts = expert_metrics(result.experts, run_, result.tokens),
                                 .times = times_of(done.times, log, interval_.iterations),
                                 .straggler = straggler_of(done.times, log, interval_.iterations),
                                 .slowest_by_timer = slowest_by_timer(done.times, log, interval_.iterations),
                                 .skipped = result.skipped,
                                 .wrong_ranks = wrong_ranks(result),
                                 .high_matmul_precision = kernels::matmul_precision(device_of(run_).type()) == "high"};
  metrics_.write(metrics);
  last_ = metrics;
  if (state.iteration % log.tensorboard_interval == 0) draw(state, scalars_of(metrics, log));
  draw(state, time_scalars_of(metrics, log));
  interval_.tokens += static_cast<double>(tokens);
  interval_.seconds += done.step_s;
  interval_.flops += flops;
  if (result.skipped) {
    ++interval_.skipped;
  } else if (has_no_loss(result)) {
    ++interval_.without_loss;
    tell_without_loss(state);
  } else {
    const double sentences = result.sentence_loss.value_or(0);
    interval_.loss += result.loss - sentences;
    interval_.sentence_loss += sentences;
    interval_.depth_losses.resize(result.depth_losses.size());
    for (std::size_t k = 0; k < result.depth_losses.size(); ++k) interval_.depth_losses[k] += result.depth_losses[k];
    interval_.figures.resize(result.figures.size());
    for (std::size_t k = 0; k < result.figures.size(); ++k) {
      interval_.figures[k].name = result.figures[k].name;
      interval_.figures[k].value += result.figures[k].value;
    }
  }
  if (!std::isfinite(result.loss)) ++interval_.nan;
  if (!done.memory.empty()) print_memory(state, done.memory);
  if (prints(run_, state, result)) print_interval(state, done, metrics);
  progress_.update(state.iteration,
                   concat("loss ", std::round(1e4 * metrics.loss) / 1e4, "  ", human_count(tokens_per_s), " tokens/s"));
}

// Once a run: Megatron-LM divides 0 by 0 there and calls such a step nan.
void RunLog::tell_without_loss(const RunState& state) {
  if (std::exchange(told_without_loss_, true)) return;
  message(concat(" > warning: iteration ", state.iteration,
                 ": no token of its batch counts in the loss; such steps have none and no part in its mean"));
}

std::optional<double> RunLog::decoupled(const plan::LearningRates& rates) const {
  return run_.config.schedule.decoupled_lr > 0 ? std::optional(rates.words) : std::nullopt;
}

void RunLog::skipped_batch(const RunState& state, std::int64_t global_batch) {
  ++interval_.skipped_batches;
  metrics_.write_skipped_batch(state.iteration, state.consumed_samples, global_batch);
  message(concat(" > iteration ", state.iteration, ": its batch is skipped"));
}

bool RunLog::prints(const plan::ResolvedRun& run, const RunState& state, const StepResult& result) {
  return state.iteration == run.config.train.train_iters || result.stop ||
         state.iteration % run.config.log.interval == 0;
}

void RunLog::print_memory(const RunState& state, const std::vector<std::vector<double>>& memory) {
  const auto most = std::ranges::max_element(memory, {}, [](const auto& of_rank) { return of_rank[1]; });
  print(memory_line(static_cast<int>(most - memory.begin()), state.iteration, (*most)[0], (*most)[1]));
}

void RunLog::print_interval(const RunState& state, const Iteration& done, const IterationMetrics& metrics) {
  const config::LogConfig& log = run_.config.log;
  print_iteration(state, done);
  if (metrics.straggler) print(straggler_line(*metrics.straggler));
  if (done.times && log.timing_level > 0) {
    const std::string times = timer_text(*done.times, log.timing_option, static_cast<double>(interval_.iterations));
    if (!times.empty()) print(times);
  }
  interval_ = {};
}

void RunLog::print_iteration(const RunState& state, const Iteration& done) {
  const auto counted = static_cast<double>(interval_.iterations - interval_.skipped - interval_.without_loss);
  const config::LogConfig& log = run_.config.log;
  const auto shows = [&](const char* field) { return std::ranges::find(log.fields, field) != log.fields.end(); };
  const double step_s = interval_.seconds / static_cast<double>(interval_.iterations);
  IterationLine line{.iteration = state.iteration,
                     .train_iters = run_.config.train.train_iters,
                     .consumed_samples = state.consumed_samples,
                     .step_ms = 1e3 * step_s,
                     .tflops_per_rank = interval_.flops / interval_.seconds / 1e12 / run_.grid.world_size(),
                     .learning_rate = done.next_rates.usual,
                     .decoupled_learning_rate = decoupled(done.next_rates),
                     .global_batch = done.global_batch,
                     .loss = counted > 0 ? interval_.loss / counted : 0,
                     .sentence_loss = counted > 0 ? interval_.sentence_loss / counted : 0,
                     .depth_losses = interval_.depth_losses,
                     .figures = interval_.figures,
                     .loss_scale = done.result.loss_scale,
                     .grad_norm = done.result.grad_norm,
                     .num_zeros = done.result.num_zeros,
                     .params_norm = done.result.params_norm,
                     .skipped = interval_.skipped + interval_.skipped_batches,
                     .nan = interval_.nan,
                     .shows_throughput = log.throughput};
  for (double& loss : line.depth_losses) loss /= std::max(counted, 1.0);
  for (LossFigure& figure : line.figures) figure.value /= std::max(counted, 1.0);
  const bool compact = log.format == "compact";
  if (compact || shows("tokens_per_s")) line.tokens_per_s = interval_.tokens / interval_.seconds;
  if (shows("memory")) line.memory_bytes = static_cast<double>(kernels::held_memory(device_of(run_)).bytes);
  if (compact || shows("eta"))
    line.left_s = step_s * static_cast<double>(run_.config.train.train_iters - state.iteration);
  print(compact ? compact_line(line, now_us()) : iteration_line(line, now_us()));
}

void RunLog::evaluated(const RunState& state, const Evaluation& evaluation, const std::string& set, bool test) {
  const ValidationMetrics metrics{.iteration = state.iteration,
                                  .consumed_samples = state.consumed_samples,
                                  .loss = evaluation.loss,
                                  .perplexity = evaluation.perplexity(),
                                  .sentence_loss = evaluation.sentence_loss,
                                  .figures = evaluation.figures,
                                  .set = set,
                                  .test = test};
  metrics_.write(metrics);
  draw(state, scalars_of(metrics, run_.config.log));
  const std::string place = concat("iteration ", state.iteration,
                                   test          ? " on test set"
                                   : set.empty() ? ""
                                                 : " on " + set);
  print(validation_lines(place, evaluation.token_loss(), evaluation.perplexity(), evaluation.sentence_loss,
                         evaluation.figures));
}

void RunLog::validation(const RunState& state, const Evaluation& evaluation, const std::string& set) {
  evaluated(state, evaluation, set, /*test=*/false);
}

void RunLog::test(const RunState& state, const Evaluation& evaluation) {
  evaluated(state, evaluation, "", /*test=*/true);
}

void RunLog::scores(const RunState& state, double loss, const std::vector<tasks::Metric>& metrics) {
  const TaskMetrics scored{
      .iteration = state.iteration, .consumed_samples = state.consumed_samples, .loss = loss, .scores = metrics};
  metrics_.write(scored);
  draw(state, scalars_of(scored));
  std::string line = concat(" validation at iteration ", state.iteration, " | loss: ", loss, " |");
  for (const tasks::Metric& metric : metrics)
    line += concat(" ", metric.name, ": ", std::round(100 * metric.value) / 100, " |");
  print(line);
}

void RunLog::message(const std::string& text) { print(text); }

void RunLog::draw(const RunState& state, const std::vector<Scalar>& curves) {
  if (events_) events_->write(curves);
  if (wandb_ && !curves.empty()) wandb_->write(curves, state.iteration, state.consumed_samples);
}

void RunLog::print(const std::string& text) {
  if (is_terminal(stderr))  // the progress line, which is drawn again with the next step
    std::fwrite(kEraseLine, 1, std::strlen(kEraseLine), stderr);
  write_line(console_, text);
}

}  // namespace megatron::train
