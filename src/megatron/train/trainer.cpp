#include "megatron/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/base/progress.h"
#include "megatron/base/timer.h"
#include "megatron/checkpoint/saver.h"
#include "megatron/comm/first_rank.h"
#include "megatron/config/options.h"
#include "megatron/plan/batch_plan.h"
#include "megatron/plan/counts.h"
#include "megatron/schedule/text.h"
#include "megatron/train/batches.h"
#include "megatron/train/engine.h"
#include "megatron/train/inputs.h"
#include "megatron/train/resume.h"
#include "megatron/train/run_log.h"
#include "megatron/train/run_state.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

// How often ranks that wait for another one's work meet: well before they would give it up.
std::chrono::milliseconds beat_of(const config::RunConfig& config) {
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::clamp(config.parallel.timeout_s * 1000 / 4, 1.0, 1000.0)));
}

checkpoint::Saver::Options saver_options(const config::RunConfig& config) {
  return {.keep = {.last = config.checkpoint.keep_last, .every = config.checkpoint.keep_every},
          .asynchronous = config.checkpoint.async_save,
          .beat = beat_of(config)};
}

// Opened by every rank once the first has built the index.
DatasetBatches open_dataset(const data::GptDatasetSpec& spec, const plan::ResolvedRun& run, std::int64_t eod,
                            const comm::Group& world, at::Device device) {
  comm::run_on_first_rank(
      world, [&] { data::GptDataset::build(spec); }, beat_of(run.config));
  return {spec, run.config.data, eod, run.shape.vocab, loss_type(run.config), device};
}

fs::path schedule_copy(const config::RunConfig& config) {
  return fs::absolute(fs::path(config.train.out) / "schedule.txt").lexically_normal();
}

// What the run's folder and its checkpoints keep: a run of it elsewhere has the same schedule.
std::string recipe_of(const plan::ResolvedRun& run) {
  config::RunConfig config = run.config;
  if (run.schedule_file) config.parallel.pp_schedule = schedule_copy(config).string();
  return config::save_toml(config);
}

// One rank's run. The collectives of its members are named at their calls.
class Run {
 public:
  Run(const plan::ResolvedRun& run, std::int64_t eod, const comm::Group& world, at::Device device,
      const StopRequested& stop_requested)
      : run_(run),
        config_(run.config),
        stop_requested_(stop_requested),
        train_data_(open_dataset(dataset_spec(run, data::SplitPart::Train), run, eod, world, device)),
        engine_(run, world, device),
        saver_(save_folder(config_), world, saver_options(config_)) {
    if (config_.train.eval_interval > 0)
      valid_data_.emplace(open_dataset(dataset_spec(run, data::SplitPart::Valid), run, eod, world, device));
    start_ = start_run(run, engine_);
    state_ = start_.state;
    engine_.step.before_update([this] { saver_.before_change(); });
    world.barrier();  // nobody writes before everybody has read
    if (world.rank() == 0) open_folder();
  }

  Outcome go() {
    bool stop = false;
    if (validation_is_due()) {  // a stop came in between
      stop = validate();
      save();
    }
    while (!stop && !is_done()) {
      stop = iterate();
      if (!stop && validation_is_due()) stop = validate();
      const std::int64_t save_interval = config_.checkpoint.save_interval;
      if (is_done() || stop || (save_interval > 0 && state_.iteration % save_interval == 0)) save();
    }
    saver_.finish();
    write_trace();
    return is_done() && !validation_is_due() ? Outcome::Done : Outcome::Interrupted;
  }

 private:
  // Of the run; a checkpoint that was loaded may be further.
  bool is_done() const { return state_.iteration >= config_.train.train_iters; }

  // After the iteration that was done last, and not done yet.
  bool validation_is_due() const {
    return valid_data_ && state_.iteration > state_.validated_iteration &&
           (is_done() || state_.iteration % config_.train.eval_interval == 0);
  }

  // Collective over the world.
  void save() { saver_.begin(state_.iteration, sharded_tensors(engine_), run_metadata(state_, engine_, recipe_)); }

  // The timeline of the last step. Collective over the pipeline of the ranks that measured it.
  void write_trace() {
    if (!engine_.pipeline.measures()) return;
    const auto timeline = engine_.pipeline.timeline();
    if (!log_) return;
    log_->message(" > " + (timeline ? write_timeline(*timeline, run_, state_.iteration, config_.log.trace)
                                    : "no step was run: log.trace has nothing to write"));
  }

  // The recipe goes on with this copy, whatever becomes of the file that was named.
  void keep_schedule() {
    if (!run_.schedule_file) return;
    const fs::path copy = schedule_copy(config_);
    const std::string text = schedule::to_text(*run_.schedule_file);
    if (start_.from && fs::exists(copy) && read_file(copy) != text)
      start_.messages.push_back("warning: parallel.pp_schedule is no longer the schedule that " + copy.string() +
                                " had: the run goes on with the new one");
    write_file(copy, text);
  }

  void open_folder() {
    fs::create_directories(config_.train.out);
    keep_schedule();
    write_file(fs::path(config_.train.out) / "recipe.toml", recipe_);
    log_.emplace(run_, state_);
    const plan::RankGrid& grid = run_.grid;
    log_->message(concat(" > ", human_count(static_cast<double>(plan::parameter_count(run_.shape))), " parameters, tp ",
                         grid.size(plan::Axis::Tp), " x pp ", grid.size(plan::Axis::Pp), " x dp ",
                         grid.size(plan::Axis::Dp), ", ", config_.train.dtype, " on ", config_.parallel.device));
    for (const std::string& message : start_.messages) log_->message(" > " + message);
    if (start_.weights_only)
      log_->message(concat(" > begins with the weights of ", start_.from->string()));
    else if (start_.from)
      log_->message(concat(" > resumed from ", start_.from->string(), " at iteration ", state_.iteration, ", ",
                           state_.skipped_iterations, " of them skipped"));
  }

  // The sample numbers of this rank's microbatches in the global batch that begins at sample `first`.
  std::vector<std::vector<std::int64_t>> microbatches(std::int64_t first, std::int64_t global_batch) const {
    return plan::batch_plan(first, global_batch, config_.train.micro_batch_size, run_.grid.size(plan::Axis::Dp),
                            engine_.context.index(plan::Axis::Dp))
        .microbatches;
  }

  // One iteration; whether some rank was asked to stop. Collective over the world.
  bool iterate() {
    const Stopwatch watch;
    const std::int64_t global_batch = run_.batch_schedule.global_batch(state_.consumed_samples);
    const double learning_rate = run_.learning_rate.at(state_.schedule_samples);
    const auto samples = microbatches(state_.consumed_samples, global_batch);
    const StepResult result = engine_.step(
        static_cast<int>(samples.size()), [&](std::size_t m) { return train_data_.get(samples[m]); }, learning_rate,
        stop_requested_());
    saver_.poll();
    ++state_.iteration;
    state_.consumed_samples += global_batch;
    if (result.skipped)
      ++state_.skipped_iterations;
    else
      state_.schedule_samples += global_batch;
    if (log_)
      log_->iteration(state_, {.result = result,
                               .step_s = watch.seconds(),
                               .global_batch = global_batch,
                               .learning_rate = learning_rate,
                               .next_learning_rate = run_.learning_rate.at(state_.schedule_samples)});
    const bool ends = result.skipped && config_.train.exit_on_nan && !result.harmless;
    if (ends) saver_.finish();
    if (ends)
      throw std::runtime_error(concat("iteration ", state_.iteration, ": loss ", result.loss, " and gradient norm ",
                                      result.grad_norm, " must be finite (train.exit_on_nan)."));
    return result.stop;
  }

  // Loss over eval_iters global batches; whether some rank was asked to stop. Collective over the world.
  bool validate() {
    const std::int64_t first = (state_.iteration - 1) / config_.train.eval_interval * samples_of_a_validation(config_);
    const auto samples = microbatches(first, samples_of_a_validation(config_));
    const Evaluation evaluation = evaluate(
        engine_.pipeline, engine_.context, samples.size(), [&](std::size_t m) { return valid_data_->get(samples[m]); },
        stop_requested_());
    state_.validated_iteration = state_.iteration;
    if (log_) log_->validation(state_, evaluation);
    return evaluation.stop;
  }

  const plan::ResolvedRun& run_;
  const config::RunConfig& config_;
  const StopRequested& stop_requested_;
  const std::string recipe_ = recipe_of(run_);
  DatasetBatches train_data_;
  std::optional<DatasetBatches> valid_data_;
  Engine engine_;
  checkpoint::Saver saver_;
  Start start_;
  RunState state_;
  std::optional<RunLog> log_;  // of the first rank
};

}  // namespace

Outcome train(const plan::ResolvedRun& run, std::int64_t eod, comm::Group world, at::Device device,
              const StopRequested& stop_requested) {
  return Run(run, eod, world, device, stop_requested).go();
}

}  // namespace megatron::train
