#include "megatron/train/guard.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/printable.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/train/log/run_log.h"

namespace megatron::train {
namespace {

LossGuard::Action action_named(const std::string& name, const RunState& state, const config::GuardConfig& guard) {
  if (name == "skip") return LossGuard::Action::Skip;
  if (name == "stop") return LossGuard::Action::Stop;
  return state.rollbacks < guard.max_rollbacks ? LossGuard::Action::RollBack : LossGuard::Action::Stop;
}

}  // namespace

LossGuard::LossGuard(const config::RunConfig& config, int rank)
    : guard_(config.guard),
      rank_(rank),
      faults_(plan::faults_of(guard_.inject_faults)),
      spikes_(guard_.spike_factor, static_cast<std::size_t>(guard_.spike_window)) {
  if (guard_.on_nan == "auto") guard_.on_nan = config.train.exit_on_nan ? "stop" : "skip";
}

void LossGuard::start_at(const RunState& state) { spikes_.set_losses(state.recent_losses); }

void LossGuard::before_step(std::int64_t iteration) const {
  for (const plan::Fault& fault : faults_) {
    if (fault.iteration != iteration || fault.rank != rank_) continue;
    if (fault.kind == plan::Fault::Kind::Hang)
      while (true) std::this_thread::sleep_for(std::chrono::hours(1));
    if (fault.kind != plan::Fault::Kind::Exit) continue;
    write_line(stderr, concat("rank ", rank_, " ends before iteration ", iteration, ", as guard.inject_faults says"));
    _exit(70);
  }
}

StepCheck LossGuard::check_of(std::int64_t iteration) const {
  StepCheck check{.due = guard_.rerun_interval > 0 && iteration % guard_.rerun_interval == 0};
  for (const plan::Fault& fault : faults_) {
    if (fault.iteration != iteration || fault.rank != rank_) continue;
    if (fault.kind == plan::Fault::Kind::Flip) check.flip = BitFlip::Once;
    if (fault.kind == plan::Fault::Kind::Stuck) check.flip = BitFlip::Always;
  }
  return check;
}

void LossGuard::judge(std::int64_t iteration, StepResult& result) const {
  for (const plan::Fault& fault : faults_) {
    if (fault.iteration != iteration) continue;
    if (fault.kind == plan::Fault::Kind::Nan) result.loss = std::numeric_limits<double>::quiet_NaN();
    if (fault.kind == plan::Fault::Kind::Spike) result.loss *= 100;
  }
  result.skipped = result.skipped || !std::isfinite(result.loss);
  result.spike = !result.skipped && watches_spikes() && spikes_.is_spike(result.loss);
  result.skipped = result.skipped || result.spike;
}

LossGuard::Action LossGuard::after_step(const StepResult& result, RunState& state) {
  if (!result.skipped) {
    if (!watches_spikes() || has_no_loss(result)) return Action::None;
    spikes_.add(result.loss);
    state.recent_losses = spikes_.losses();
    return Action::None;
  }
  if (result.harmless) return Action::None;
  return action_named(result.spike ? guard_.on_spike : guard_.on_nan, state, guard_);
}

std::string write_batch(const plan::ResolvedRun& run, const DatasetBatches& samples, const BatchOfIteration& of,
                        bool writes) {
  const std::filesystem::path folder = std::filesystem::path(run.config.train.out) / "batches";
  const std::string prefix = (folder / concat("iteration_", of.iteration)).string();
  if (!writes) return prefix;
  make_folder(folder);
  data::IndexedDatasetWriter writer(prefix, data::dtype_for_vocabulary(run.shape.vocab));
  const bool next_tokens = run.shape.predicts_tokens() && run.shape.causal && !run.shape.encoder_decoder();
  for (std::int64_t sample = of.first; sample < of.first + of.count; ++sample) {
    const model::Batch batch = samples.get({&sample, 1});
    std::vector<std::int32_t> tokens;
    const std::int64_t* const ids = batch.tokens_bs.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < batch.tokens_bs.numel(); ++i) tokens.push_back(static_cast<std::int32_t>(ids[i]));
    if (next_tokens)  // the last one is a label alone
      tokens.push_back(
          static_cast<std::int32_t>(batch.labels_bs.const_data_ptr<std::int64_t>()[batch.labels_bs.numel() - 1]));
    const auto length = static_cast<std::int32_t>(tokens.size());
    writer.add_document(tokens, {&length, 1});
  }
  writer.publish();
  return prefix;
}

}  // namespace megatron::train
