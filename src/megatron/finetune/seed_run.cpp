#include "megatron/finetune/seed_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/timer.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/checkpoint/saver.h"
#include "megatron/config/options.h"
#include "megatron/finetune/evaluate.h"
#include "megatron/finetune/weights.h"
#include "megatron/plan/batch_plan.h"
#include "megatron/plan/counts.h"
#include "megatron/train/inputs.h"
#include "megatron/train/prefetch.h"
#include "megatron/train/run_log.h"
#include "megatron/train/run_state.h"

namespace megatron::finetune {
namespace {

namespace fs = std::filesystem;

BatchOptions batch_options(const plan::ResolvedRun& run, const config::TaskConfig& task) {
  return {.seq_length = run.config.data.seq_length,
          .pad_to_longest = task.pad_to_longest,
          .unit = run.config.parallel.sp ? std::lcm(std::int64_t{8}, std::int64_t{run.config.parallel.tp}) : 8,
          .token_types = run.shape.token_types > 0,
          .vocab = run.shape.vocab};
}

/// Only weights are kept: nobody goes on from the optimizer of the best ones.
std::vector<checkpoint::ShardedTensor> weights_of(const train::Engine& engine) {
  auto tensors = train::sharded_tensors(engine);
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name.starts_with("optimizer."); });
  return tensors;
}

checkpoint::Saver::Options saver_options(const config::CheckpointConfig& checkpoint) {
  return {.keep = {.last = 1, .every = 0}, .asynchronous = checkpoint.async_save};
}

std::string text_of(const std::vector<tasks::Metric>& metrics) {
  std::string text;
  for (const tasks::Metric& metric : metrics) {
    char digits[64];
    std::snprintf(digits, sizeof digits, "%.2f", metric.value);
    text += concat(text.empty() ? "" : ", ", metric.name, " ", digits);
  }
  return text;
}

class SeedRun {
 public:
  SeedRun(const plan::ResolvedRun& run, const config::TaskConfig& task, const TaskData& data, const std::string& recipe,
          const comm::Group& world, at::Device device, const train::StopRequested& stop_requested, bool quiet)
      : run_(run),
        config_(run.config),
        task_(task),
        data_(data),
        stop_requested_(stop_requested),
        first_(world.rank() == 0),
        out_(config_.train.out),
        engine_(run, world, device),
        train_(*data.train, data.form(), batch_options(run, task)),
        valid_(*data.valid, data.form(), batch_options(run, task)),
        saver_(train::save_folder(config_), world, saver_options(config_.checkpoint)) {
    best_ = {.seed = config_.train.seed, .task = task.name, .recipe = recipe, .metrics = {}};
    engine_.step.before_update([this] { saver_.before_change(); });
    if (!config_.checkpoint.load.empty()) load_weights(config_.checkpoint.load, engine_, run);
    engine_.shared.check_copies();
    if (first_) open_folder(quiet ? stderr : stdout);
    world.barrier();  // the folder is there
  }

  std::optional<SeedResult> go() {
    bool stop = false;
    {
      train::Prefetcher reader(
          next_places(), [this](const std::vector<std::int64_t>& places) { return batch_of(places); },
          static_cast<std::size_t>(config_.data.prefetch));
      while (!stop && state_.iteration < config_.train.train_iters) {
        stop = iterate(reader);
        const std::int64_t interval = config_.train.eval_interval;
        const bool last = state_.iteration == config_.train.train_iters;
        if (!stop && !last && interval > 0 && state_.iteration % interval == 0) validate();
      }
    }
    if (!stop) validate();
    saver_.finish();
    if (stop) return std::nullopt;
    if (data_.test) predict_test();
    if (first_) {
      write_result(out_, best_, best_logits_);
      log_->message(concat(" > best at iteration ", best_.iteration, ": ", text_of(best_.metrics)));
    }
    return best_;
  }

 private:
  void open_folder(std::FILE* console) {
    fs::remove_all(train::save_folder(config_));  // of a run of this seed that did not end
    fs::create_directories(out_);
    log_.emplace(run_, state_, console);
    const plan::RankGrid& grid = run_.grid;
    log_->message(concat(" > ", task_.name, ", seed ", config_.train.seed, ": ", data_.train->examples(),
                         " examples to learn from, ", data_.valid->examples(), " to evaluate on; ",
                         human_count(static_cast<double>(plan::parameter_count(run_.shape))), " parameters, tp ",
                         grid.size(plan::Axis::Tp), " x pp ", grid.size(plan::Axis::Pp), " x dp ",
                         grid.size(plan::Axis::Dp), ", ", config_.train.dtype, " on ", config_.parallel.device));
  }

  /// Places in the run of this rank's microbatches in the step that begins at place `first`.
  std::vector<std::vector<std::int64_t>> microbatches(std::int64_t first) const {
    return plan::batch_plan(first, config_.train.global_batch_size, config_.train.micro_batch_size,
                            run_.grid.size(plan::Axis::Dp), engine_.context.index(plan::Axis::Dp))
        .microbatches;
  }

  train::Prefetcher::NextIds next_places() const {
    return [this, iteration = std::int64_t{0}, of_step = std::vector<std::vector<std::int64_t>>(),
            m = std::size_t{0}]() mutable -> std::vector<std::int64_t> {
      if (m == of_step.size()) {
        if (iteration >= config_.train.train_iters) return {};
        of_step = microbatches(iteration++ * config_.train.global_batch_size);
        m = 0;
      }
      return of_step[m++];
    };
  }

  /// Called by the thread that reads alone.
  model::Batch batch_of(const std::vector<std::int64_t>& places) {
    std::vector<Item> items;
    for (const std::int64_t place : places) items.push_back(order_.at(place));
    return train_.get(items, row_length_of_step(places[0] / config_.train.global_batch_size));
  }

  std::int64_t row_length_of_step(std::int64_t step) {
    if (step == read_step_) return row_length_;
    std::vector<Item> items;
    for (std::int64_t k = 0; k < config_.train.global_batch_size; ++k)
      items.push_back(order_.at(step * config_.train.global_batch_size + k));
    read_step_ = step;
    return row_length_ = train_.row_length(items);
  }

  /// Tokens of the step that begins at place `first`, without padding.
  std::int64_t tokens_of(std::int64_t first) {
    std::int64_t tokens = 0;
    for (std::int64_t k = 0; k < config_.train.global_batch_size; ++k)
      if (const Item item = logged_order_.at(first + k); item.sample != Item::kNone)
        tokens += std::int64_t{data_.form().rows} * data_.train->length(static_cast<std::size_t>(item.sample));
    return tokens;
  }

  /// One step; whether some rank was asked to stop. Collective over the world.
  bool iterate(train::Prefetcher& reader) {
    const Stopwatch watch;
    const std::int64_t global_batch = config_.train.global_batch_size;
    const double learning_rate = run_.learning_rate.at(state_.schedule_samples);
    const auto count = static_cast<std::size_t>(run_.microbatches_per_step);
    train::StepBatches batches(reader, count, engine_.context.device());
    const train::StepResult result =
        engine_.step(static_cast<int>(count), std::ref(batches), learning_rate, stop_requested_());
    batches.finish();
    saver_.poll();
    const std::int64_t tokens = first_ ? tokens_of(state_.consumed_samples) : 0;
    ++state_.iteration;
    state_.consumed_samples += global_batch;
    if (result.skipped)
      ++state_.skipped_iterations;
    else
      state_.schedule_samples += global_batch;
    if (log_)
      log_->iteration(state_, {.result = result,
                               .step_s = watch.seconds(),
                               .data_wait_s = reader.take_waited_s(),
                               .global_batch = global_batch,
                               .learning_rate = learning_rate,
                               .next_learning_rate = run_.learning_rate.at(state_.schedule_samples),
                               .tokens = tokens});
    if (result.skipped && config_.train.exit_on_nan && !result.harmless)
      throw std::runtime_error(concat("iteration ", state_.iteration, ": loss ", result.loss, " and gradient norm ",
                                      result.grad_norm, " must be finite (train.exit_on_nan)."));
    return result.stop;
  }

  TaskLogits logits_of(const TaskBatches& batches) {
    Progress progress("evaluate", "samples", static_cast<std::int64_t>(batches.task().size()),
                      first_ ? Progress::mode_of(config_.log.progress) : Progress::Mode::Off);
    return evaluate(engine_, run_, batches, [&](std::int64_t done) { progress.update(done); });
  }

  /// Evaluates, and keeps what is better than all before. Every rank decides alike. Collective over the world.
  void validate() {
    TaskLogits logits = logits_of(valid_);
    tasks::TaskScores scores = data_.valid->scores(logits.values);
    if (log_) log_->scores(state_, logits.loss, scores.metrics);
    if (!best_.metrics.empty() && !(scores.metrics[0].value > best_.metrics[0].value)) return;
    best_.iteration = state_.iteration;
    best_.loss = logits.loss;
    best_.null_threshold = scores.null_threshold;
    best_.metrics = scores.metrics;
    best_logits_ = std::move(logits.values);
    saver_.begin(state_.iteration, weights_of(engine_),
                 train::run_metadata(state_, engine_, config::save_toml(config_)));
    if (first_) write_predictions(out_, *data_.valid, best_logits_, best_.null_threshold, scores.report);
  }

  /// With the best weights. Collective over the world.
  void predict_test() {
    if (best_.iteration != state_.iteration) load_weights(train::save_folder(config_), engine_, run_);
    const TaskBatches test(*data_.test, data_.form(), batch_options(run_, task_));
    const TaskLogits logits = logits_of(test);
    if (!first_) return;
    fs::create_directories(out_ / "test");
    const tasks::TaskScores scores = data_.test->labelled() ? data_.test->scores(logits.values) : tasks::TaskScores{};
    write_predictions(out_ / "test", *data_.test, logits.values, best_.null_threshold, scores.report);
    log_->message(concat(" > test set: predictions in ", (out_ / "test").string(), scores.metrics.empty() ? "" : "; ",
                         text_of(scores.metrics)));
  }

  const plan::ResolvedRun& run_;
  const config::RunConfig& config_;
  const config::TaskConfig& task_;
  const TaskData& data_;
  const train::StopRequested& stop_requested_;
  const bool first_;
  const fs::path out_;
  train::Engine engine_;
  TaskBatches train_, valid_;
  checkpoint::Saver saver_;
  train::RunState state_;
  SampleOrder order_{static_cast<std::int64_t>(data_.train->size()), task_.epochs, config_.train.seed};
  std::int64_t read_step_ = -1, row_length_ = 0;  // of the thread that reads, as is order_
  SampleOrder logged_order_ = order_;             // of the thread that trains
  SeedResult best_;
  std::vector<float> best_logits_;
  std::optional<train::RunLog> log_;  // of the first rank
};

}  // namespace

std::int64_t steps_of(std::int64_t samples, double epochs, std::int64_t global_batch) {
  const std::int64_t total = SampleOrder(samples, epochs, 0).total();
  return (total + global_batch - 1) / global_batch;
}

std::optional<SeedResult> run_seed(const plan::ResolvedRun& run, const config::TaskConfig& task, const TaskData& data,
                                   const std::string& recipe, const comm::Group& world, at::Device device,
                                   const train::StopRequested& stop_requested, bool quiet) {
  return SeedRun(run, task, data, recipe, world, device, stop_requested, quiet).go();
}

}  // namespace megatron::finetune
