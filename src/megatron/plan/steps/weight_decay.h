#pragma once
#include <cstdint>
#include <string>

namespace megatron::plan {

enum class WeightDecayGrowth : std::uint8_t { Linear, Cosine };

/// "cosine" -> WeightDecayGrowth::Cosine, as in schedule.weight_decay_incr_style, whose "constant" is none. Throws
/// ConfigError.
WeightDecayGrowth weight_decay_growth_of(const std::string& name);

/// Weight decay that grows over the run, as a function of the samples that advanced the learning rate; equal to that of
/// Megatron-LM's OptimizerParamScheduler.get_wd to the last bit.
struct WeightDecaySchedule {
  double start = 0, end = 0;
  std::int64_t samples = 0;  ///< until `end`
  WeightDecayGrowth growth = WeightDecayGrowth::Linear;

  /// A step uses at(samples before it).
  double at(std::int64_t before) const;
};

}  // namespace megatron::plan
