#include "megatron/plan/steps/batch_schedule.h"

#include <algorithm>
#include <limits>

#include "megatron/base/error.h"

namespace megatron::plan {

BatchSchedule::BatchSchedule(std::int64_t global_batch, std::int64_t unit, const std::vector<std::int64_t>& rampup)
    : full_(global_batch), start_(global_batch) {
  if (unit < 1 || full_ < 1 || full_ % unit != 0)
    throw ConfigError(
        rule_got_fix("train.global_batch_size must be a multiple of train.micro_batch_size x dp.",
                     concat("global batch ", full_, ", micro batch x dp ", unit),
                     unit < 1 ? "" : concat("--global-batch-size ", std::max<std::int64_t>(1, full_ / unit) * unit)));
  if (rampup.empty()) return;
  std::string got;
  for (const std::int64_t number : rampup) got += concat(got.empty() ? "" : ",", number);
  if (rampup.size() != 3 || *std::min_element(rampup.begin(), rampup.end()) < 1)
    throw ConfigError(rule_got_fix("schedule.rampup_batch_size must be three numbers >= 1: start,increment,samples.",
                                   got, "leave --rampup-batch-size out"));
  start_ = rampup[0];
  increment_ = rampup[1];
  rampup_samples_ = rampup[2];
  if (start_ > full_ || (full_ - start_) % increment_ != 0 || start_ % unit != 0 ||
      (start_ < full_ && increment_ % unit != 0))
    throw ConfigError(rule_got_fix(
        "schedule.rampup_batch_size: the start and the increment must be multiples of train.micro_batch_size x dp, and "
        "a whole number of increments must lead to train.global_batch_size.",
        concat(got, ", global batch ", full_, ", micro batch x dp ", unit),
        concat("--rampup-batch-size ", unit, " ", unit, " ", rampup_samples_)));
}

std::int64_t BatchSchedule::global_batch(std::int64_t consumed) const {
  if (start_ == full_ || consumed > rampup_samples_) return full_;
  // Megatron-LM divides in floating point: the same expression gives the same step at every boundary.
  const std::int64_t increments = (full_ - start_) / increment_;
  const double samples_per_increment = static_cast<double>(rampup_samples_) / static_cast<double>(increments);
  return std::min(
      full_, start_ + static_cast<std::int64_t>(static_cast<double>(consumed) / samples_per_increment) * increment_);
}

std::int64_t BatchSchedule::samples_of(std::int64_t steps) const {
  std::int64_t samples = 0;
  while (steps > 0 && start_ < full_ && samples <= rampup_samples_) {
    samples += global_batch(samples);
    --steps;
  }
  std::int64_t rest = 0, sum = 0;
  const bool fits = !__builtin_mul_overflow(steps, full_, &rest) && !__builtin_add_overflow(samples, rest, &sum);
  return fits ? sum : std::numeric_limits<std::int64_t>::max();
}

}  // namespace megatron::plan
