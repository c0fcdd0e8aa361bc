#include "megatron/kernels/rope.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace megatron::kernels {
namespace {

/// The number of the pair that turns so many times over the original positions.
double pair_that_turns(const RopeOptions& options, double times) {
  const double positions = static_cast<double>(options.scaling.original_positions);
  return static_cast<double>(options.rotary_dim) * std::log(positions / (times * 2 * std::numbers::pi)) /
         (2 * std::log(options.base));
}

/// How far pair i is stretched: 0 not at all, 1 by the whole factor.
double yarn_share(const RopeOptions& options, std::int64_t i) {
  const bool whole = options.scaling.whole_pairs;
  const double fast = pair_that_turns(options, options.scaling.beta_fast),
               slow = pair_that_turns(options, options.scaling.beta_slow);
  const double first = std::max(0.0, whole ? std::floor(fast) : fast);
  double last = std::min(static_cast<double>(options.rotary_dim - 1), whole ? std::ceil(slow) : slow);
  if (first == last) last += 0.001;
  return std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
}

double rotated_factor(const RopeScaling& scaling) {
  const bool by_each = scaling.kind == RopeScaling::Kind::LongRope;
  if ((scaling.kind != RopeScaling::Kind::Yarn && !by_each) || scaling.factor == 1) return 1;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  if (by_each)
    return std::sqrt(1 + std::log(scaling.factor) / std::log(static_cast<double>(scaling.original_positions)));
  return 0.1 * std::log(scaling.factor) + 1;
}

/// Radians per position of pair i, in sequences of up to `positions`.
double frequency(const RopeOptions& options, std::int64_t i, std::int64_t positions) {
  const double plain = std::pow(options.base, -2.0 * static_cast<double>(i) / static_cast<double>(options.rotary_dim));
  const RopeScaling& scaling = options.scaling;
  if (scaling.factor == 1) return plain;
  if (scaling.kind == RopeScaling::Kind::Linear) return plain / scaling.factor;
  if (scaling.kind == RopeScaling::Kind::LongRope) {
    const bool stretched = positions > scaling.original_positions;
    return plain / (stretched ? scaling.long_factor : scaling.short_factor).at(static_cast<std::size_t>(i));
  }
  if (scaling.kind == RopeScaling::Kind::Yarn) {
    const double stretched = yarn_share(options, i);
    return stretched * plain / scaling.factor + (1 - stretched) * plain;
  }
  const double turns = static_cast<double>(scaling.original_positions) * plain / (2 * std::numbers::pi);
  if (turns < scaling.low_freq_factor) return plain / scaling.factor;
  if (turns > scaling.high_freq_factor) return plain;
  const double kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - kept) * plain / scaling.factor + kept * plain;
}

}  // namespace

RopeTable rope_table(const RopeOptions& options, std::int64_t positions, at::ScalarType dtype, at::Device device) {
  if (options.rotary_dim <= 0 || options.rotary_dim % 2 != 0)
    throw std::logic_error("rotary positions need an even number of features");
  const std::int64_t half = options.rotary_dim / 2;
  const at::Tensor cos = at::empty({positions, half}, at::kDouble), sin = at::empty({positions, half}, at::kDouble);
  double *c = cos.mutable_data_ptr<double>(), *s = sin.mutable_data_ptr<double>();
  const double factor = rotated_factor(options.scaling);
  for (std::int64_t i = 0; i < half; ++i) {
    const double radians = frequency(options, i, positions);
    for (std::int64_t p = 0; p < positions; ++p) {
      c[p * half + i] = factor * std::cos(static_cast<double>(p) * radians);
      s[p * half + i] = factor * std::sin(static_cast<double>(p) * radians);
    }
  }
  const at::ScalarType kept = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {cos.to(device, kept), sin.to(device, kept), options.interleaved};
}

}  // namespace megatron::kernels
