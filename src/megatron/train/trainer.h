#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "megatron/comm/activity.h"
#include "megatron/comm/group.h"
#include "megatron/plan/rules.h"
#include "megatron/train/pipeline.h"

namespace megatron::train {

enum class Outcome {
  Done,
  Interrupted,  ///< a rank was asked to stop: the step under way was finished and the run saved
  Faulty,       ///< a persistent error of ranks (guard.rerun_interval); what was trained since is not saved
  Left,         ///< train.exit_interval or train.exit_duration_mins ended it before train.train_iters: it is saved
};

/// Whether this process was asked to stop (SIGINT, SIGTERM). Asked once a step on every rank; one rank's yes is enough.
using StopRequested = std::function<bool()>;

/// Who looks after a run from outside.
struct RunWatch {
  /// How often this process was asked to save so far (SIGUSR1); empty: nobody asks. Asked once per step on the first
  /// rank, which tells the others.
  std::function<int()> saves_requested = {};
  comm::Activity* activity = nullptr;  ///< is told what this rank does; null: nobody is
  /// Throws std::runtime_error where the run's folders are no longer its own (resume/run_folders.h). Asked on the first
  /// rank before it writes there, also in threads of its own; empty: nobody is.
  std::function<void()> require_folders = {};
};

/// A whole training run on one rank: compares what the ranks were started with (agreement.h), opens the data (the first
/// rank to come builds the sample index), resumes from a checkpoint where there is one, trains, validates, logs, saves.
/// `eod`: the tokenizer's end-of-document token, or -1 where no option of config.data needs it. `prepare`, if any, is
/// called on every rank once they agree and before anything is written; what it throws on one it must throw on all.
/// `forward_step`: a loss of one's own, the same on every rank. `job_id`: what log.progress_file calls the job.
/// Collective over `world`. Throws comm::AgreedError where ranks differ, ConfigError for data or a checkpoint that does
/// not fit, std::runtime_error where a file cannot be written or where a loss or gradient that is not finite, or a
/// spike, ends the run (train.exit_on_nan, guard.on_nan, guard.on_spike).
Outcome train(const plan::ResolvedRun& run, std::int64_t eod, comm::Group world, at::Device device,
              const StopRequested& stop_requested, const std::function<void()>& prepare = {},
              const ForwardStep& forward_step = {}, const std::string& job_id = {}, const RunWatch& watch = {});

}  // namespace megatron::train
