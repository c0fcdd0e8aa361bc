#include "megatron/config/megatron/train_steps.h"

#include <algorithm>

#include "megatron/config/megatron/translation.h"

namespace megatron::config {
namespace {

/// Nothing where the numbers are no growth.
std::optional<std::int64_t> steps_of_ramp(std::int64_t samples, std::int64_t full,
                                          const std::vector<std::int64_t>& ramp) {
  if (ramp.size() != 3) return std::nullopt;
  const std::int64_t start = ramp[0], increment = ramp[1], grows = ramp[2];
  constexpr std::int64_t kMost = std::int64_t{1} << 48, kMostSizes = 10'000'000;
  if (start < 1 || increment < 1 || grows < 1 || grows > kMost || full <= start || full > kMost) return std::nullopt;
  const std::int64_t increments = (full - start) / increment;
  if (increments < 1 || increments > kMostSizes) return std::nullopt;
  // The division there is one of floating point.
  const double share = static_cast<double>(grows) / static_cast<double>(increments);
  const auto place = [&](std::int64_t consumed) {
    return static_cast<std::int64_t>(static_cast<double>(consumed) / share);
  };
  std::int64_t consumed = 0, steps = 0;
  while (consumed <= grows) {
    const std::int64_t here = place(consumed), size = start + here * increment;
    std::int64_t low = consumed, high = grows + 1;  // the size holds at low, and no longer at high
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (place(middle) == here ? low : high) = middle;
    }
    const std::int64_t there = (high - consumed + size - 1) / size;
    steps += there;
    consumed += there * size;
  }
  const std::int64_t rest = samples - consumed;
  return std::max<std::int64_t>(0, steps + (rest >= 0 ? rest / full : -((-rest + full - 1) / full)));
}

}  // namespace

std::int64_t steps_of_samples(std::int64_t samples, std::int64_t full, const std::vector<std::int64_t>& ramp) {
  return steps_of_ramp(samples, full, ramp).value_or(samples / std::max<std::int64_t>(1, full));
}

std::int64_t index_samples_of(std::optional<std::int64_t> samples, std::int64_t steps, std::int64_t full,
                              const std::vector<std::int64_t>& ramp) {
  const bool grows = ramp.size() == 3;
  const std::int64_t whole = product(steps, full);
  const std::int64_t made_for = samples.value_or(whole);
  // Of a run that ends while its batch grows, the last step may go beyond.
  if (grows && samples && (ramp[2] >= made_for || made_for - ramp[2] < full)) return 0;
  return grows || made_for != whole ? made_for : 0;
}

}  // namespace megatron::config
