#include "megatron/plan/steps/batch_schedule.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

constexpr const char* kStepsFix = "leave --step-batch-size-schedule out; or write it as '0:768 250B:1536'";

/// "250B" as a number; nothing where it is none, or beyond what products of sizes may be.
std::optional<std::int64_t> number_with_suffix(std::string_view text) {
  constexpr std::string_view kSuffixes = "KMBT";
  double factor = 1, number = 0;
  if (!text.empty()) {
    const auto place = kSuffixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))));
    if (place != std::string_view::npos) {
      for (std::size_t i = 0; i <= place; ++i) factor *= 1000;
      text.remove_suffix(1);
    }
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  number *= factor;
  if (!(number >= 0 && number <= 0x1p60)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

}  // namespace

std::vector<BatchStep> read_batch_steps(const std::string& text, std::int64_t seq_length) {
  const auto fail = [](const char* rule, const std::string& got) {
    throw ConfigError(rule_got_fix(concat("schedule.step_batch_size ", rule), got, kStepsFix));
  };
  std::vector<BatchStep> steps;
  constexpr std::size_t kMaxEntries = 4096;
  for (std::size_t begin = 0; (begin = text.find_first_not_of(" ,\t\n", begin)) != std::string::npos;) {
    const std::size_t end = std::min(text.find_first_of(" ,\t\n", begin), text.size());
    const std::string_view entry = std::string_view(text).substr(begin, end - begin);
    const std::size_t colon = entry.find(':');
    const auto tokens = number_with_suffix(entry.substr(0, colon));
    const auto size = colon == entry.npos ? std::nullopt : number_with_suffix(entry.substr(colon + 1));
    if (!tokens || !size || *size < 1 || *size > std::int64_t{1} << 30 || steps.size() == kMaxEntries)
      fail("takes entries TOKENS:SAMPLES, such as 250B:1536.", concat("'", entry, "'"));
    steps.push_back({*tokens / std::max<std::int64_t>(1, seq_length), *size});
    begin = end;
  }
  std::ranges::stable_sort(steps, {}, &BatchStep::from);
  if (steps.empty() || steps.front().from != 0) fail("must have an entry for the first step, 0:SAMPLES.", text);
  const auto equal = std::ranges::adjacent_find(steps, {}, &BatchStep::from);
  if (equal != steps.end())
    fail("must have each size begin at a sample of its own.",
         concat("sizes ", equal->size, " and ", (equal + 1)->size, " from sample ", equal->from, " on"));
  return steps;
}

std::vector<BatchStep> steps_left(const std::vector<BatchStep>& steps, std::int64_t consumed) {
  const auto later = std::ranges::upper_bound(steps, consumed, {}, &BatchStep::from);
  return {later == steps.begin() ? later : later - 1, steps.end()};
}

BatchSchedule::BatchSchedule(std::vector<BatchStep> steps, std::int64_t unit, std::int64_t consumed)
    : full_(steps.back().size), start_(full_), steps_(std::move(steps)) {
  for (const BatchStep& step : steps_left(steps_, consumed)) {
    if (unit < 1 || step.size % unit != 0)
      throw ConfigError(
          rule_got_fix("schedule.step_batch_size: each size must be a multiple of train.micro_batch_size x dp.",
                       concat(step.size, ", micro batch x dp ", unit), "--micro-batch-size 1, or fewer ranks"));
    sizes_.push_back(step.size);
  }
  std::ranges::sort(sizes_);
  sizes_.erase(std::ranges::unique(sizes_).begin(), sizes_.end());
}

std::int64_t BatchSchedule::num_sizes() const {
  if (!steps_.empty()) return static_cast<std::int64_t>(sizes_.size());
  return increment_ > 0 ? (full_ - start_) / increment_ + 1 : 1;
}

std::int64_t BatchSchedule::size(std::int64_t k) const {
  return steps_.empty() ? start_ + k * increment_ : sizes_.at(static_cast<std::size_t>(k));
}

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
  if (!steps_.empty()) return steps_left(steps_, consumed).front().size;
  if (start_ == full_ || consumed > rampup_samples_) return full_;
  // Megatron-LM divides in floating point: the same expression gives the same step at every boundary.
  const std::int64_t increments = (full_ - start_) / increment_;
  const double samples_per_increment = static_cast<double>(rampup_samples_) / static_cast<double>(increments);
  return std::min(
      full_, start_ + static_cast<std::int64_t>(static_cast<double>(consumed) / samples_per_increment) * increment_);
}

std::int64_t BatchSchedule::samples_of(std::int64_t steps) const {
  std::int64_t samples = 0;
  for (std::size_t i = 0; i + 1 < steps_.size() && steps > 0; ++i) {
    if (samples >= steps_[i + 1].from) continue;  // the step before it reached over its whole stretch
    const std::int64_t size = steps_[i].size, there = (steps_[i + 1].from - samples + size - 1) / size;
    samples += std::min(there, steps) * size;
    steps -= std::min(there, steps);
  }
  while (steps > 0 && start_ < full_ && samples <= rampup_samples_) {  // all steps of one size at once
    const std::int64_t size = global_batch(samples);
    std::int64_t low = samples, high = rampup_samples_ + 1;  // the size holds at low, and no longer at high
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (global_batch(middle) == size ? low : high) = middle;
    }
    const std::int64_t there = std::min(steps, (high - samples + size - 1) / size);
    samples += there * size;
    steps -= there;
  }
  std::int64_t rest = 0, sum = 0;
  const bool fits = !__builtin_mul_overflow(steps, full_, &rest) && !__builtin_add_overflow(samples, rest, &sum);
  return fits ? sum : std::numeric_limits<std::int64_t>::max();
}

}  // namespace megatron::plan
