#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/config/run_config.h"
#include "megatron/plan/steps/faults.h"
#include "megatron/supervise/spikes.h"
#include "megatron/train/data/batches.h"
#include "megatron/train/resume/run_state.h"
#include "megatron/train/step.h"

namespace megatron::train {

/// What a run does about losses that are not finite or leap (config.guard, train.exit_on_nan), and when it checks what
/// its ranks compute: the same on every rank.
class LossGuard {
 public:
  enum class Action : std::uint8_t { None, Skip, RollBack, Stop };

  LossGuard(const config::RunConfig& config, int rank);

  /// The run stands at `state`: it starts, or was rolled back.
  void start_at(const RunState& state);
  /// Before the step of `iteration`: faults that tests have asked for.
  void before_step(std::int64_t iteration) const;
  /// How that step is checked on this rank, without StepCheck::of_share.
  StepCheck check_of(std::int64_t iteration) const;
  /// Whether judge() may find what the step does not find by itself: a loss that leaps, or a fault.
  bool judges() const { return watches_spikes() || !faults_.empty(); }
  /// TrainStep::judge() of the step of `iteration`.
  void judge(std::int64_t iteration, StepResult& result) const;
  /// After it: what becomes of the run. A loss that counts is remembered in `state`.
  Action after_step(const StepResult& result, RunState& state);

 private:
  bool watches_spikes() const { return guard_.on_spike != "ignore"; }

  config::GuardConfig guard_;
  int rank_;
  std::vector<plan::Fault> faults_;
  supervise::SpikeWatch spikes_;
};

/// The batch of an iteration: samples [first, first + count) of the run.
struct BatchOfIteration {
  std::int64_t iteration = 0, first = 0, count = 0;
};
/// Writes it as documents of a pair below train.out, where `writes`: on the first rank. Returns the pair's prefix.
std::string write_batch(const plan::ResolvedRun& run, const DatasetBatches& samples, const BatchOfIteration& of,
                        bool writes);

}  // namespace megatron::train
