#include "megatron/plan/sample_rules.h"

#include <algorithm>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"

namespace megatron::plan {
namespace {

void resolve_learning_rate(const config::ScheduleConfig& schedule, Samples& samples, Rules& rules) {
  LearningRateSchedule& rate = samples.rate;
  rate = {.warmup_init = schedule.lr_warmup_init,
          .peak = schedule.lr,
          .min = schedule.min_lr,
          .warmup_samples = static_cast<double>(schedule.lr_warmup_samples),
          .decay_samples = schedule.lr_decay_samples > 0 ? schedule.lr_decay_samples : samples.total,
          .decay = lr_decay_of(schedule.lr_decay_style),
          .wsd_samples = schedule.lr_wsd_decay_samples,
          .wsd_decay = wsd_decay_of(schedule.lr_wsd_decay_style)};
  if (rate.warmup_samples == 0 && rate.decay_samples <= kMaxSamples && schedule.lr_warmup_fraction <= 1)
    rate.warmup_samples = schedule.lr_warmup_fraction * static_cast<double>(rate.decay_samples);
  const bool decays = rate.decay != LrDecay::Constant && rate.decay_samples > 0;
  const bool ends = rate.warmup_samples < static_cast<double>(rate.decay_samples);
  rules.require(!decays || ends, "the warm-up must end before the decay does.",
                fmt::format("warm-up {} samples, decay {} samples", rate.warmup_samples, rate.decay_samples),
                schedule.lr_warmup_samples > 0 ? concat("--lr-warmup-samples ", rate.decay_samples / 10)
                                               : "--lr-warmup-fraction 0.1");
  rules.require(rate.decay != LrDecay::Wsd || rate.wsd_samples <= rate.decay_samples,
                "schedule.lr_wsd_decay_samples must be at most the samples of the whole decay.",
                concat(rate.wsd_samples, " of ", rate.decay_samples),
                concat("--lr-wsd-decay-samples ", rate.decay_samples));
  if (schedule.decoupled_lr <= 0) return;
  samples.words_rate = rate;
  samples.words_rate->peak = schedule.decoupled_lr;
  if (schedule.decoupled_min_lr >= 0) samples.words_rate->min = schedule.decoupled_min_lr;
}

void resolve_weight_decay(const config::ScheduleConfig& schedule, Samples& samples) {
  if (schedule.weight_decay_incr_style == "constant") return;
  const std::int64_t given = schedule.weight_decay_incr_samples;
  samples.weight_decay = {.start = schedule.start_weight_decay,
                          .end = schedule.end_weight_decay,
                          .samples = given > 0 ? given : samples.total,
                          .growth = weight_decay_growth_of(schedule.weight_decay_incr_style)};
}

}  // namespace

std::vector<BatchStep> resolve_batch_steps(config::RunConfig& config, int dp, const Facts& facts, Rules& rules) {
  config::TrainConfig& train = config.train;
  std::vector<BatchStep> steps;
  if (config.schedule.step_batch_size.empty()) return steps;
  rules.attempt([&] { steps = read_batch_steps(config.schedule.step_batch_size, config.data.seq_length); });
  rules.require(config.schedule.rampup_batch_size.empty(),
                "schedule.step_batch_size and schedule.rampup_batch_size are two ways to say one thing.", "both",
                "leave --rampup-batch-size out");
  if (steps.empty() || dp < 1) return steps;
  const std::int64_t last = steps.back().size;
  rules.require(train.global_batch_size == 0 || train.global_batch_size == last,
                "train.global_batch_size must be left out, or the last size, where schedule.step_batch_size is given.",
                concat(train.global_batch_size, ", last size ", last), concat("--global-batch-size ", last));
  train.global_batch_size = last;
  if (facts.resumed_batch <= 0) return steps;
  const std::vector<BatchStep> left = steps_left(steps, facts.resumed_samples);
  for (std::int64_t micro = std::clamp<std::int64_t>(train.micro_batch_size, 0, kMaxBatch); micro > 0; --micro)
    if (std::ranges::all_of(left, [&](const BatchStep& step) { return step.size % (micro * dp) == 0; })) {
      train.micro_batch_size = micro;
      break;
    }
  return steps;
}

void keep_batch(config::RunConfig& config, int dp, std::int64_t batch, Rules& rules) {
  config::TrainConfig& train = config.train;
  if (batch <= 0 || dp < 1 || train.micro_batch_size < 1 || train.micro_batch_size > kMaxBatch) return;
  if (train.global_batch_size != 0 && train.global_batch_size != batch) return;  // another is asked for
  train.global_batch_size = batch;
  if (batch % dp != 0) {
    const std::int64_t unit = train.micro_batch_size * dp;
    train.global_batch_size = (batch + unit - 1) / unit * unit;  // as the fix has it: one violation is enough
    return rules.require(false, "A resumed run keeps its global batch, which must be a multiple of dp.",
                         concat("global batch ", batch, " in the checkpoint, dp ", dp),
                         concat("--global-batch-size ", train.global_batch_size,
                                ", another batch from here on; or ranks of which dp divides ", batch));
  }
  std::vector<std::int64_t> batches = {batch};
  if (config.schedule.rampup_batch_size.size() == 3)
    batches.insert(batches.end(), config.schedule.rampup_batch_size.begin(),
                   config.schedule.rampup_batch_size.begin() + 2);
  for (std::int64_t micro = std::min(train.micro_batch_size, batch / dp); micro > 0; --micro)
    if (std::ranges::all_of(batches, [&](std::int64_t size) { return size % (micro * dp) == 0; })) {
      train.micro_batch_size = micro;
      return;
    }
}

Samples resolve_samples(config::RunConfig& config, int dp, const std::vector<BatchStep>& steps, const Facts& facts,
                        Rules& rules) {
  Samples samples;
  config::TrainConfig& train = config.train;
  if (train.micro_batch_size < 1 || train.micro_batch_size > kMaxBatch) return samples;
  const std::int64_t unit = train.micro_batch_size * dp;
  if (train.global_batch_size == 0) train.global_batch_size = unit;
  rules.attempt([&] {
    if (steps.empty())
      samples.batches.emplace(train.global_batch_size, unit, config.schedule.rampup_batch_size);
    else
      samples.batches.emplace(steps, unit, facts.resumed_samples);
  });
  const std::int64_t eval_batch = train.eval_global_batch_size;
  rules.require(eval_batch % unit == 0,
                "train.eval_global_batch_size must be a multiple of train.micro_batch_size x dp.",
                concat(eval_batch, ", micro batch ", train.micro_batch_size, ", dp ", dp),
                concat("--eval-global-batch-size ", eval_batch / unit * unit + unit));
  if (!samples.batches || train.train_iters < 0 || train.train_iters > kMaxSteps) return samples;
  samples.total = samples.batches->samples_of(train.train_iters);
  const std::int64_t index = config.data.index_samples;
  rules.require(index == 0 || (index >= samples.total && index <= kMaxSamples),
                concat("data.index_samples must be 0, or from the samples of the run to ", kMaxSamples, "."),
                concat(index, ", the run takes ", samples.total), "--data.index_samples 0");
  rules.choices("data", config.data);
  rules.range<std::int64_t>("data.cyclic_batch", config.data.cyclic_batch, 1, kMaxBatch);
  rules.attempt([&] { resolve_learning_rate(config.schedule, samples, rules); });
  rules.attempt([&] { resolve_weight_decay(config.schedule, samples); });
  return samples;
}

}  // namespace megatron::plan
