#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megatron/comm/processes/environment.h"
#include "megatron/config/run_config.h"
#include "megatron/plan/rules.h"
#include "megatron/text/tokenizer.h"
#include "megatron/train/trainer.h"

// One training run, as `megatron train` does it.
namespace megatron::run {

/// A consistent recipe, with its tokenizer and what a launcher has said.
struct TrainingJob {
  plan::ResolvedRun run;
  text::Tokenizer tokenizer;
  std::optional<comm::LaunchedRank> place;  ///< nothing: no launcher has started this process
  std::vector<std::string> notes = {};      ///< what options became that were given otherwise, for the user
};

/// Changes a configuration that says all but its layout of ranks, of which there are `ranks_here` on this machine, and
/// returns what the user is told of it; "": nothing. `teacher`: that of distill.teacher, where there is one.
using ChooseLayout = std::function<std::string(config::RunConfig& config, int ranks_here,
                                               const std::optional<plan::TeacherNetwork>& teacher)>;

/// Resolves `config` for training and loads its tokenizer: where data.tokenizer names none, the one that lies with the
/// weights of checkpoint.load, which `config` then names. `choose`: empty for the layout that `config` says. Throws
/// ConfigError that lists all that is wrong; nothing has been written then.
TrainingJob open_training(config::RunConfig& config, const ChooseLayout& choose = {});

/// Whether this process speaks for the run before its ranks have met: it is the first rank's, and starts no others.
bool speaks_for(const TrainingJob& job);

struct TrainingOptions {
  /// A loss of one's own in place of the model's, the same on every rank.
  train::ForwardStep forward_step = {};
  /// The first SIGINT, SIGTERM or SIGHUP finishes the step, saves and ends the run (stop_on_signals()).
  bool stop_on_signals = false;
  /// Asked once per step on every rank whether to save and end; empty: nobody asks. Signals count besides.
  train::StopRequested stop_requested = {};
};

/// Trains from the beginning or, where train.out holds checkpoints, from the last of them. Checks files, memory and the
/// machine before any rank starts. With parallel.launch processes, this program is started again for each rank, with
/// the words it was started with, and has to come to this call again. Returns kDone, kInterrupted where it was asked
/// to stop and has saved, or kFaulty where ranks compute wrongly (exit_codes.h); of ranks that are processes also what
/// run_on_ranks() returns. Throws ConfigError before anything is written, comm::AgreedError where ranks differ,
/// std::runtime_error where the run fails. Best called in run_job_of_ranks(), which tells the other ranks of a launcher
/// what one finds wrong.
int train(const TrainingJob& job, const TrainingOptions& options = {});

}  // namespace megatron::run
