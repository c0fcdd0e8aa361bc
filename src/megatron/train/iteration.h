#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "megatron/base/timer.h"
#include "megatron/checkpoint/save/saver.h"
#include "megatron/plan/rules.h"
#include "megatron/train/data/prefetch.h"
#include "megatron/train/engine.h"
#include "megatron/train/log/run_log.h"
#include "megatron/train/resume/run_state.h"

// What every run does from its start to its end, whatever it learns.
namespace megatron::train {

/// How often ranks that wait for another one's work meet: well before they would give it up.
std::chrono::milliseconds beat_of(const config::RunConfig& config);

/// How a run saves what it resumes from. `require_folder`: checkpoint::Saver::Options.
checkpoint::Saver::Options saver_options(const config::RunConfig& config, std::function<void()> require_folder = {});

/// The sample numbers of this rank's microbatches in the global batch that begins at sample `first`; with `places`
/// those of the rank so many places further on in ParallelContext::samples().
std::vector<std::vector<std::int64_t>> microbatches(const plan::ResolvedRun& run,
                                                    const parallel::ParallelContext& context, std::int64_t first,
                                                    std::int64_t global_batch, int places = 0);

/// Those of all iterations from `state` to the end of the run, one microbatch a call. Keeps references to `run` and
/// `context`.
Prefetcher::NextIds coming_microbatches(const plan::ResolvedRun& run, const parallel::ParallelContext& context,
                                        const RunState& state);

/// What an iteration goes through.
struct IterationParts {
  const plan::ResolvedRun& run;
  Engine& engine;
  Prefetcher& reader;  ///< of coming_microbatches()
  checkpoint::Saver& saver;
  RunLog* log;                 ///< null: of another rank
  bool save = false;           ///< this rank was asked to save
  StepCheck check = {};        ///< how the step is checked; its of_share is made here, of `make`
  Prefetcher::Make make = {};  ///< makes the microbatches of another rank where a check is due
};

/// How an iteration has ended, the same on every rank but for the times.
struct IterationEnd {
  StepResult result;
  std::int64_t first_sample = 0, global_batch = 0;  ///< that it has consumed
};

/// Whether the batch of `iteration` (from 1) is skipped: guard.skip_iterations, or a rollback has chosen it.
bool skips_batch(const config::GuardConfig& guard, const RunState& state, std::int64_t iteration);

/// Instead of one that skips_batch(): `state` advances, as after a step that was skipped.
void skip_batch(const IterationParts& parts, RunState& state);

/// One optimizer step on what `reader` has next, and what it entails: a save under way advances, `state` advances, the
/// log is written. `stop`: this rank was asked to stop; the result says whether some rank was. `tokens`: of the step,
/// where samples have other lengths than data.seq_length (RunLog::Iteration). What becomes of a
/// step that was skipped is the caller's to decide. Collective over the world.
IterationEnd run_iteration(const IterationParts& parts, RunState& state, bool stop, std::int64_t tokens = 0);

/// An iteration that the device was given and whose result the host has not asked for.
struct OpenIteration {
  TrainStep::Open step = {};
  std::int64_t first_sample = 0, global_batch = 0;
  plan::LearningRates rates = 0.0;
  double data_wait_s = 0;
  Stopwatch watch = {};  ///< since it began
};

/// run_iteration() in three parts (TrainStep::Open): the passes on what `reader` has next. Where another iteration is
/// open, `state` is behind_open() of it.
OpenIteration begin_iteration(const IterationParts& parts, const RunState& state, bool stop);
/// The update, at the learning rate of `state`, which is that after the iteration before.
void update_iteration(const IterationParts& parts, OpenIteration& open, const RunState& state);
/// What follows from its result: `state` advances, the log is written. `most_s`: how long the step has taken at most,
/// where it began while another was open.
IterationEnd end_iteration(const IterationParts& parts, OpenIteration open, RunState& state, std::int64_t tokens = 0,
                           double most_s = std::numeric_limits<double>::infinity());
/// Where the run stands behind `open`, as far as that does not depend on its result: iteration and samples consumed.
RunState behind_open(RunState state, const OpenIteration& open);

/// What all ranks have measured of `timers`, which are of their own (timers.h), on the console by `log`, null on other
/// ranks. Collective over the world where these are on.
void print_times(Engine& engine, const config::LogConfig& options, RunLog* log, const std::vector<TimerId>& timers);

}  // namespace megatron::train
