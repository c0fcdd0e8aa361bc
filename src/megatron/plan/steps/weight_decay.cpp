#include "megatron/plan/steps/weight_decay.h"

#include <cmath>
#include <numbers>

#include "megatron/base/error.h"

namespace megatron::plan {

WeightDecayGrowth weight_decay_growth_of(const std::string& name) {
  if (name == "linear") return WeightDecayGrowth::Linear;
  if (name == "cosine") return WeightDecayGrowth::Cosine;
  throw ConfigError(rule_got_fix("schedule.weight_decay_incr_style must be constant, linear or cosine.",
                                 "'" + name + "'", "--weight-decay-incr-style constant (the default)"));
}

double WeightDecaySchedule::at(std::int64_t before) const {
  if (before > samples || samples == 0) return end;
  const double ratio = static_cast<double>(before) / static_cast<double>(samples);
  const double share =
      growth == WeightDecayGrowth::Linear ? ratio : 0.5 * (std::cos(std::numbers::pi * (1 - ratio)) + 1.0);
  return start + share * (end - start);
}

}  // namespace megatron::plan
