#include "megatron/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/timer.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/save/saver.h"
#include "megatron/comm/agreement.h"
#include "megatron/config/options.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/counts.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/schedule/text.h"
#include "megatron/supervise/events.h"
#include "megatron/train/checked_passes.h"
#include "megatron/train/data/prefetch.h"
#include "megatron/train/data/run_data.h"
#include "megatron/train/engine.h"
#include "megatron/train/guard.h"
#include "megatron/train/inputs.h"
#include "megatron/train/iteration.h"
#include "megatron/train/log/progress_file.h"
#include "megatron/train/log/run_log.h"
#include "megatron/train/resume/agreement.h"
#include "megatron/train/resume/input_digests.h"
#include "megatron/train/resume/memory_copies.h"
#include "megatron/train/resume/resume.h"
#include "megatron/train/resume/run_state.h"
#include "megatron/train/troubles.h"
#include "megatron/train/tuning/distillation.h"
#include "megatron/train/tuning/preference.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

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
class TrainingRun {
 public:
  TrainingRun(const plan::ResolvedRun& run, std::int64_t eod, const comm::Group& world, at::Device device,
              const StopRequested& stop_requested, const ForwardStep& forward_step, const std::string& job_id,
              const RunWatch& watch)
      : run_(run),
        config_(run.config),
        stop_requested_(stop_requested),
        outside_(watch),
        job_id_(job_id),
        data_(open_data(run, eod, world)),
        data_s_(since_start_.seconds()),
        engine_(run, world, device),
        saver_(save_folder(config_), world, saver_options(config_, watch.require_folders)),
        guard_(config_, world.rank()) {
    engine_.pipeline.use(config_.dpo.beta > 0               ? preference_step(config_.dpo)
                         : !config_.distill.teacher.empty() ? distillation_step(run, engine_)
                                                            : forward_step);
    engine_.pipeline.report_to(outside_.activity);
    begin_phase("loading");
    if (!config_.train.skip_train && (keeps_memory() || memory_is_left(config_, world))) memory_.emplace(run, engine_);
    start_ = start_run(run, engine_, memory_ ? &*memory_ : nullptr);
    if (!memory_ && !config_.train.skip_train) leave_memory_behind(config_, world);
    if (memory_ && !keeps_memory() && !start_.in_memory) end_memory();
    if (config_.dpo.beta > 0) find_references();
    begin_at(start_.state);
    engine_.step.before_update([this] {
      saver_.before_change();
      if (memory_) memory_->before_change();
    });
    if (guard_.judges()) engine_.step.judge([this](StepResult& result) { guard_.judge(state_.iteration + 1, result); });
    engine_.timers.add(TimerId::DataSetup, data_s_);
    engine_.timers.add(TimerId::ModelAndOptimizerSetup, since_start_.seconds() - data_s_);
    world.barrier();  // nobody writes before everybody has read
    if (world.rank() == 0) {
      inputs_ = to_text(digest_inputs(run_));
      open_folder();
    }
    print_times({TimerId::ModelAndOptimizerSetup, TimerId::DataSetup});
  }

  Outcome go() {
    if (config_.train.skip_train) return evaluate_alone();
    bool stop = false, leave = false;
    if (start_.in_memory && (is_done() || !keeps_memory())) save();  // nothing of it is on the disk yet
    if (memory_ && !keeps_memory() && config_.checkpoint.save_interval >= 0) end_memory();
    if (validation_is_due()) {  // a stop came in between
      stop = validate();
      save();
    }
    while ((!stop && !leave && !is_done()) || open_) {
      const Iterated iterated = iterate(stop);
      if (iterated.faulty) {
        if (memory_) memory_->remove();  // who looks at the run chooses what it resumes from
        return Outcome::Faulty;
      }
      stop = stop || iterated.stop;
      save_is_asked_ = save_is_asked_ || iterated.save;
      if (progress_ && !saver_.under_way()) progress_->saved();
      if (iterated.rolled_back || open_) continue;  // nothing is due before what is open has ended
      if (!stop && validation_is_due()) stop = validate();
      leave = is_time_to_leave();
      const std::int64_t save_interval = config_.checkpoint.save_interval;
      const bool is_due = save_interval > 0 && state_.iteration % save_interval == 0;
      if (is_done() || stop || leave || is_due || std::exchange(save_is_asked_, false))
        save();
      else if (memory_ && memory_->is_due(state_.iteration))
        memory_->save(state_, recipe_, inputs_);
    }
    saver_.finish();
    if (progress_) progress_->saved();
    if (memory_ && keeps_memory()) memory_->remove();
    if (!stop && is_done() && !data_.test.empty() && start_.state.iteration < state_.iteration) test();
    write_trace();
    if (is_done() && !validation_is_due()) {
      require_finite_end();
      return Outcome::Done;
    }
    return stop || !leave ? Outcome::Interrupted : Outcome::Left;
  }

 private:
  struct Iterated {
    bool stop = false, save = false, rolled_back = false, faulty = false;
  };

  void begin_phase(const char* phase) const { begin_phase(phase, state_.iteration + 1); }
  void begin_phase(const char* phase, std::int64_t iteration) const {
    if (outside_.activity != nullptr) outside_.activity->begin_phase(phase, iteration);
  }

  bool keeps_memory() const { return config_.checkpoint.memory_interval > 0; }

  // What was left there is on the disk now, or older than what is. Collective over the world.
  void end_memory() {
    saver_.finish();
    memory_->remove();
    memory_.reset();
  }

  // Gives every set of preferences its reference, computed or read. Collective over the world.
  void find_references() {
    begin_phase("reference");
    const fs::path folder = fs::path(config_.train.out) / "reference";
    const auto of = [&](std::vector<NamedData>& sets, const char* name) {
      for (std::size_t i = 0; i < sets.size(); ++i)
        sets[i].batches.refer_to(reference_log_probabilities(
            run_, engine_, sets[i].batches, folder / concat(name, i == 0 ? "" : concat("_", i), ".safetensors"),
            start_.state.iteration > 0));
    };
    of(data_.train, "train");
    of(data_.valid, "valid");
    of(data_.test, "test");
  }

  // The next iteration is the one after `state`.
  void begin_at(const RunState& state) {
    state_ = state;
    guard_.start_at(state_);
    reader_.emplace(
        coming_microbatches(run_, engine_.context, state_),
        [this](const std::vector<std::int64_t>& ids) { return data_.train.front().batches.get(ids); },
        static_cast<std::size_t>(config_.data.prefetch));
  }

  // Whether iterations may begin before the host knows the result of the one before, so that the device never waits for
  // it: on a GPU, where nobody asks for more than the device decides.
  bool runs_ahead() const {
    return (!engine_.context.device().is_cpu() || kernels::emulates_cuda()) && engine_.step.may_stay_open() &&
           config_.train.exit_duration_mins <= 0 && !config_.log.profile && config_.log.trace.empty();
  }

  // Whether the next one may begin before the result of the open one is known: nothing is due in between.
  bool next_may_begin(bool stops) const {
    const std::int64_t open = state_.iteration + 1;
    const auto is_due = [&](std::int64_t interval) { return interval > 0 && open % interval == 0; };
    return !stops && !save_is_asked_ && open < config_.train.train_iters && !is_due(config_.checkpoint.save_interval) &&
           !is_due(config_.checkpoint.memory_interval) && !is_due(config_.train.exit_interval) &&
           (data_.valid.empty() || !is_due(config_.train.eval_interval)) &&
           !skips_batch(config_.guard, state_, open + 1) && !guard_.check_of(open + 1).due;
  }

  // One iteration; where some run ahead, one begins and the one before, if any, ends. `stops`: no other begins.
  // Collective over the world.
  Iterated iterate(bool stops) {
    IterationParts parts{run_, engine_, *reader_, saver_, log_ ? &*log_ : nullptr};
    if (open_ && !next_may_begin(stops)) return end_open(parts);
    const RunState before = open_ ? behind_open(state_, *open_) : state_;
    const std::int64_t iteration = before.iteration + 1;
    begin_phase("step", iteration);
    if (skips_batch(config_.guard, before, iteration)) {
      skip_batch(parts, state_);
      if (memory_) memory_->poll();
      return {};
    }
    const bool asks = outside_.saves_requested && engine_.context.world().rank() == 0;
    const int saves = asks ? outside_.saves_requested() : 0;  // ranks agree in a step: who asks before waits for one
    parts.save = saves > std::exchange(saves_seen_, saves);
    guard_.before_step(iteration);
    parts.check = guard_.check_of(iteration);
    parts.make = [this](const std::vector<std::int64_t>& ids) { return data_.train.front().batches.get(ids); };
    const bool profiled = step_is_profiled();
    engine_.pipeline.profile(profiled);
    OpenIteration now = taking_memory_for("the activations of a step",
                                          [&] { return begin_iteration(parts, before, stop_requested_()); });
    Iterated of_before;
    if (open_) of_before = end_open(parts);
    if (of_before.rolled_back) {      // what has begun changes nothing
      if (parts.save) --saves_seen_;  // it is asked for again
      return of_before;
    }
    taking_memory_for("the update of a step", [&] { update_iteration(parts, now, state_); });
    if (memory_) memory_->poll();
    open_.emplace(std::move(now));
    if (!parts.check.due && runs_ahead()) return of_before;
    const Iterated iterated = end_open(parts);
    if (profiled) write_profile();
    return iterated;
  }

  // The host learns what has become of the open iteration. Collective over the world.
  Iterated end_open(const IterationParts& parts) {
    const double most_s = since_end_.seconds();
    since_end_.restart();
    const IterationEnd end = end_iteration(parts, *std::exchange(open_, std::nullopt), state_, /*tokens=*/0, most_s);
    report();
    if (end.result.save) tell("save_requested", {{"iteration", state_.iteration}});
    if (!end.result.suspects.empty()) tell_suspects(end.result);
    if (end.result.checked && !end.result.has_persistent_error()) agreed_ = state_.iteration;
    if (end.result.has_persistent_error()) return {.faulty = true};
    return {.stop = end.result.stop, .save = end.result.save, .rolled_back = act_on(end)};
  }

  void report() const {
    if (outside_.activity == nullptr || !log_ || !log_->last()) return;
    const IterationMetrics& last = *log_->last();
    outside_.activity->report({.loss = last.loss,
                               .grad_norm = last.grad_norm,
                               .learning_rate = last.learning_rate,
                               .tokens_per_s = last.tokens_per_s,
                               .step_ms = last.step_ms,
                               .consumed_samples = last.consumed_samples,
                               .memory_bytes = last.memory_bytes,
                               .skipped_steps = state_.skipped_iterations,
                               .rollbacks = state_.rollbacks});
  }

  // An event of the run: the first rank tells it.
  void tell(std::string_view event, const nlohmann::ordered_json& details) {
    if (events_) events_->write(event, details);
  }

  // Ranks that may have computed wrongly: at a persistent error the run ends here. Collective over the world.
  void tell_suspects(const StepResult& result) {
    const bool stops = result.has_persistent_error();
    const nlohmann::ordered_json suspects = events_of(result.suspects, engine_.context);
    const std::string text = text_of_suspects(suspects);
    tell("wrong_gradients", {{"iteration", state_.iteration},
                             {"error", stops ? "persistent" : "transient"},
                             {"action", stops ? "stop" : "repair"},
                             {"ranks", suspects}});
    if (!stops && log_)
      log_->message(concat(" > iteration ", state_.iteration, ": a transient error, computed again: ", text));
    if (!stops) return;
    saver_.finish();
    tell("stopped", {{"iteration", state_.iteration}, {"why", "wrong_gradients"}, {"batch", ""}});
    if (log_)
      write_line(stderr, rule_got_fix("Ranks that compute the same must get the same gradients (guard.rerun_interval).",
                                      concat("iteration ", state_.iteration, ": ", text),
                                      advice_on_suspects(suspects, engine_.context.world().size(), agreed_)));
    engine_.context.world().barrier();  // launchers end the ranks that are left once one has ended with a code
  }

  // What config.guard says of the iteration that was done last; whether the run was rolled back. Collective over the
  // world.
  bool act_on(const IterationEnd& end) {
    using Action = LossGuard::Action;
    const Action action = guard_.after_step(end.result, state_);
    if (action == Action::None) return false;
    const bool keeps_batch = action != Action::Skip;
    std::string batch;
    if (keeps_batch)
      batch = write_batch(run_, data_.train.front().batches, {state_.iteration, end.first_sample, end.global_batch},
                          log_.has_value());
    const char* const names[] = {"none", "skip", "rollback", "stop"};
    const bool rolls_back = action == Action::RollBack && has_own_checkpoint();
    const char* const done = action == Action::RollBack && !rolls_back ? "skip" : names[static_cast<int>(action)];
    const auto finite = [](double value) {
      return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
    };
    const std::string kind = end.result.spike ? "spike" : "nan";
    tell(kind, {{"iteration", state_.iteration},
                {"loss", finite(end.result.loss)},
                {"grad_norm", finite(end.result.grad_norm)},
                {"action", done},
                {"first_sample", end.first_sample},
                {"samples", end.global_batch},
                {"batch", batch}});
    if (action == Action::Stop) stop_for(end, kind, batch);
    if (rolls_back) roll_back();
    return rolls_back;
  }

  // The folder is the first rank's to look at. Collective over the world.
  bool has_own_checkpoint() {
    const comm::Group& world = engine_.context.world();
    saver_.finish();
    const bool has = world.rank() == 0 && checkpoint::has_latest(save_folder(config_));
    return world.all_reduce_scalars({has ? 1.0 : 0.0})[0] > 0;
  }

  [[noreturn]] void stop_for(const IterationEnd& end, const std::string& kind, const std::string& batch) {
    saver_.finish();
    tell("stopped", {{"iteration", state_.iteration}, {"why", kind}, {"batch", batch}});
    throw std::runtime_error(reason_to_stop(config_, state_, end.result, kind, batch));
  }

  // Nothing was learned in the last steps, and what was saved after them may be of no use. Collective over the world.
  void require_finite_end() {
    if (state_.nonfinite_steps < kManyNonfiniteSteps) return;
    tell("stopped", {{"iteration", state_.iteration}, {"why", "nan"}, {"batch", ""}});
    engine_.context.world().barrier();  // all has been written
    throw std::runtime_error(failure_at_end(state_, save_folder(config_).string()));
  }

  // To the newest whole checkpoint; the batch of the iteration that was done last, and those before it that
  // guard.rollback_batches says, are skipped from now on. Collective over the world.
  void roll_back() {
    begin_phase("rolling back");
    const std::int64_t bad = state_.iteration;
    RunState before = std::move(state_);
    reader_.reset();
    if (memory_) memory_->clear();      // it has learned from batches that will be skipped
    engine_.parameters.await_values();  // which the last update has started to gather
    const Start start = start_run(run_, engine_);
    RunState state = start.state;
    state.rollbacks = before.rollbacks + 1;
    state.skipped_batches = std::move(before.skipped_batches);
    const std::int64_t first = std::max(state.iteration + 1, bad - config_.guard.rollback_batches + 1);
    for (std::int64_t iteration = first; iteration <= bad; ++iteration) state.skipped_batches.push_back(iteration);
    std::ranges::sort(state.skipped_batches);
    const auto twice = std::ranges::unique(state.skipped_batches);
    state.skipped_batches.erase(twice.begin(), twice.end());
    begin_at(state);
    engine_.context.world().barrier();  // nobody writes before everybody has read
    tell("rolled_back",
         {{"from", bad}, {"to", state_.iteration}, {"first_skipped", first}, {"rollbacks", state_.rollbacks}});
    if (!log_) return;
    log_.emplace(run_, state_, stdout, outside_.require_folders);
    for (const std::string& message : start.messages) log_->message(" > " + message);
    log_->message(concat(" > rolled back from iteration ", bad, " to ", state_.iteration,
                         ": the batches of iterations ", first, " to ", bad, " will be skipped"));
  }

  // Of the run; a checkpoint that was loaded may be further.
  bool is_done() const { return state_.iteration >= config_.train.train_iters; }

  // After the iteration that was done last. One clock decides for all. Collective over the world.
  bool is_time_to_leave() {
    const std::int64_t interval = config_.train.exit_interval;
    if (interval > 0 && state_.iteration % interval == 0) return say_leaves("train.exit_interval");
    if (config_.train.exit_duration_mins <= 0) return false;
    const double minutes = engine_.context.world().rank() == 0 ? watch_.seconds() / 60 : 0;
    if (engine_.context.world().all_reduce_scalars({minutes})[0] < config_.train.exit_duration_mins) return false;
    return say_leaves("train.exit_duration_mins");
  }
  bool say_leaves(const char* option) {
    if (log_ && !is_done()) log_->message(concat(" > ends at iteration ", state_.iteration, " as ", option, " says"));
    return true;
  }

  // After the iteration that was done last, and not done yet.
  bool validation_is_due() const {
    return !data_.valid.empty() && state_.iteration > state_.validated_iteration &&
           (is_done() || (state_.iteration % config_.train.eval_interval == 0 &&
                          state_.iteration >= config_.train.start_eval_at_iter));
  }

  // Validates and tests the weights that the run begins with, and leaves checkpoints as they are. Collective over the
  // world.
  Outcome evaluate_alone() {
    bool stop = false;
    if (!data_.valid.empty()) stop = validate();
    if (!stop && !data_.test.empty()) test();
    if (log_ && data_.valid.empty() && data_.test.empty())
      log_->message(
          " > nothing to evaluate: train.skip_train reads validation data (train.eval_interval) and test data");
    return stop ? Outcome::Interrupted : Outcome::Done;
  }

  // Collective over the world.
  void save() {
    if (config_.checkpoint.save_interval < 0) return;
    begin_phase("saving");
    const bool nonfinite = state_.nonfinite_steps > 0, is_said = std::exchange(saved_nonfinite_, nonfinite);
    if (log_ && nonfinite && !is_said) write_line(stderr, warning_of_save(state_));
    {
      const auto timer = engine_.timers.time(TimerId::SaveCheckpoint);
      saver_.begin(state_.iteration, sharded_tensors(engine_), run_metadata(state_, engine_, recipe_, inputs_));
    }
    if (progress_)
      progress_->save(
          {.iteration = state_.iteration,
           .flops = flops_so_far(),
           .tokens = static_cast<double>(state_.consumed_samples) * static_cast<double>(config_.data.seq_length),
           .seconds = watch_.seconds(),
           .is_under_way = saver_.under_way()});
    print_times({TimerId::SaveCheckpoint});
  }

  void print_times(const std::vector<TimerId>& timers) {
    train::print_times(engine_, config_.log, log_ ? &*log_ : nullptr, timers);
  }

  // Since the run's first sample.
  double flops_so_far() const {
    return plan::training_flops(run_.shape, state_.consumed_samples, config_.data.seq_length,
                                config_.data.decoder_seq_length);
  }

  // Whether the step that comes next is one of those that log.profile is for.
  bool step_is_profiled() const {
    const config::LogConfig& log = config_.log;
    return log.profile && state_.iteration >= log.profile_step_start && state_.iteration < log.profile_step_end;
  }

  // The timeline of the last step of each profiled pipeline, by its first rank. Collective over that pipeline.
  void write_profile() {
    if (!engine_.pipeline.is_profiled()) return;
    const auto timeline = engine_.pipeline.timeline();
    if (!timeline || engine_.context.pipeline().rank() != 0) return;
    const fs::path folder = fs::path(config_.train.out) / "profile";
    make_folder(folder);
    const std::string line = write_timeline(
        *timeline, run_, state_.iteration,
        folder / concat("step_", state_.iteration - 1, "_rank_", engine_.context.world().rank(), ".json"));
    if (log_) log_->message(" > " + line);
  }

  // The timeline of the last step. Collective over the pipeline of the ranks that measured it.
  void write_trace() {
    if (!engine_.pipeline.measures()) return;
    const auto timeline = engine_.pipeline.timeline();
    if (!log_) return;
    log_->message(" > " + (timeline ? write_timeline(*timeline, run_, state_.iteration, config_.log.trace)
                                    : "no step was run: log.trace has nothing to write"));
  }

  // The run continues with this copy, whatever becomes of the file that was named.
  void keep_schedule() {
    if (!run_.schedule_file) return;
    const fs::path copy = schedule_copy(config_);
    const std::string text = schedule::to_text(*run_.schedule_file);
    if (start_.from && fs::exists(copy) && read_file(copy) != text)
      start_.messages.push_back("warning: parallel.pp_schedule is no longer the schedule that " + copy.string() +
                                " had: the run continues with the new one");
    write_file(copy, text);
  }

  void open_folder() {
    fs::create_directories(config_.train.out);
    const fs::path recipe = fs::path(config_.train.out) / "recipe.toml";
    if (!config_.train.skip_train || !fs::exists(recipe)) {  // a run that is evaluated keeps its own
      keep_schedule();
      write_file(recipe, recipe_);
    }
    log_.emplace(run_, state_, stdout, outside_.require_folders);
    events_.emplace(fs::path(config_.train.out) / "events.jsonl", "run");
    if (config_.log.progress_file && config_.checkpoint.save_interval >= 0)
      progress_.emplace(save_folder(config_),
                        ProgressFile::Job{.id = job_id_, .ranks = run_.grid.world_size(), .flops = flops_so_far()});
    log_->message(concat(" > ", human_count(static_cast<double>(plan::parameter_count(run_.shape))), " parameters, ",
                         plan::sizes_text(run_.grid), ", ", config_.train.dtype,
                         engine_.fp8 ? " with fp8 " + config_.fp8.format : "", " on ", config_.parallel.device));
    for (const std::string& line : plan::sharding_warnings(run_)) log_->message(" > " + line);
    for (const std::string& message : start_.messages) log_->message(" > " + message);
    if (start_.weights_only)
      log_->message(concat(" > begins with the weights of ", start_.from->string()));
    else if (start_.from)
      log_->message(concat(" > resumed from ", start_.from->string(), start_.in_memory ? " in memory" : "",
                           " at iteration ", state_.iteration, ", ", state_.skipped_iterations, " of them skipped"));
    if (start_.in_memory && !keeps_memory() && config_.checkpoint.save_interval >= 0)
      log_->message(
          " > it is saved on the disk now: without checkpoint.memory_interval nodes keep none of those to come");
    if (const std::int64_t lines = log_->lines_taken_out(); lines > 0)
      log_->message(concat(" > metrics.jsonl: lines taken out, as the run does again what comes after iteration ",
                           state_.iteration, ": ", lines));
  }

  // The mean loss over `count` samples from number `first` on; those beyond the set's end count as none where
  // `once`. Collective over the world.
  Evaluation evaluate_on(const DatasetBatches& set, std::int64_t first, std::int64_t count, bool once) {
    auto samples = microbatches(run_, engine_.context, first, count);
    if (once)
      for (auto& ids : samples)
        for (std::int64_t& id : ids) id = id < set.size() ? id : DatasetBatches::kNoSample;
    return evaluate(
        engine_.pipeline, engine_.context, samples.size(),
        [&](std::size_t m) { return on_device(set.get(samples[m]), engine_.context.device()); }, stop_requested_());
  }

  // Loss over eval_iters global batches of each validation set, or over all samples of each; whether some rank was
  // asked to stop. Collective over the world.
  bool validate() {
    begin_phase("validation");
    const std::int64_t global_batch = validation_batch(config_.train);
    bool stop = false;
    auto timer = engine_.timers.time(TimerId::Evaluate);
    for (const NamedData& set : data_.valid) {
      const bool all = config_.data.full_validation;
      const std::int64_t count = all ? (set.batches.size() + global_batch - 1) / global_batch * global_batch
                                     : samples_of_a_validation(config_);
      const std::int64_t first = all ? 0 : config_.train.validations_before(state_.iteration) * count;
      const Evaluation evaluation = evaluate_on(set.batches, first, count, all);
      stop = stop || evaluation.stop;
      if (log_) log_->validation(state_, evaluation, set.name);
      collect(evaluation);
    }
    state_.validated_iteration = state_.iteration;
    timer.stop();
    print_times({TimerId::Evaluate});
    return stop;
  }

  void collect(const Evaluation& evaluation) const {
    const ForwardStep& step = engine_.pipeline.forward_step();
    if (step.collected && !evaluation.non_loss.empty() && engine_.context.tensor().rank() == 0)
      step.collected(state_.iteration, evaluation.non_loss);
  }

  // Loss on the test set, once. Collective over the world.
  void test() {
    const auto evaluation =
        evaluate_on(data_.test.front().batches, 0, samples_of_a_validation(config_), /*once=*/false);
    if (log_) log_->test(state_, evaluation);
  }

  const Stopwatch watch_;
  const plan::ResolvedRun& run_;
  const config::RunConfig& config_;
  const StopRequested& stop_requested_;
  const RunWatch& outside_;
  const std::string job_id_;
  const std::string recipe_ = recipe_of(run_);
  std::string inputs_;  // of the first rank: what run_metadata() takes
  const Stopwatch since_start_;
  RunData data_;
  double data_s_;  // that opening it took
  Engine engine_;
  checkpoint::Saver saver_;
  std::optional<MemoryCopies> memory_;
  LossGuard guard_;
  int saves_seen_ = 0;
  bool saved_nonfinite_ = false;  // the last time, after steps without a finite loss or gradient
  bool save_is_asked_ = false;    // on every rank; what was rolled back is saved after the next step
  Start start_;
  RunState state_;
  std::optional<std::int64_t> agreed_;         // the last iteration whose checked gradients are known to be right
  std::optional<RunLog> log_;                  // of the first rank
  std::optional<ProgressFile> progress_;       // of the first rank
  std::optional<supervise::EventLog> events_;  // of the first rank
  std::optional<Prefetcher> reader_;           // reads data_: ends before it
  std::optional<OpenIteration> open_;          // the one behind state_
  Stopwatch since_end_;                        // of the iteration that ended last
};

}  // namespace

Outcome train(const plan::ResolvedRun& run, std::int64_t eod, comm::Group world, at::Device device,
              const StopRequested& stop_requested, const std::function<void()>& prepare,
              const ForwardStep& forward_step, const std::string& job_id, const RunWatch& watch) {
  require_equal_runs(run, world);
  if (prepare) prepare();
  return TrainingRun(run, eod, world, device, stop_requested, forward_step, job_id, watch).go();
}

}  // namespace megatron::train
