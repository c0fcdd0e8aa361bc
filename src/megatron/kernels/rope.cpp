#include "megatron/kernels/rope.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>
#include <stdexcept>

namespace megatron::kernels {
namespace {

/// Radians per position of pair i.
double frequency(const RopeOptions& options, std::int64_t i) {
  const double plain = std::pow(options.base, -2.0 * static_cast<double>(i) / static_cast<double>(options.rotary_dim));
  const RopeScaling& scaling = options.scaling;
  if (scaling.factor == 1) return plain;
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
  for (std::int64_t i = 0; i < half; ++i) {
    const double radians = frequency(options, i);
    for (std::int64_t p = 0; p < positions; ++p) {
      c[p * half + i] = std::cos(static_cast<double>(p) * radians);
      s[p * half + i] = std::sin(static_cast<double>(p) * radians);
    }
  }
  const at::ScalarType kept = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {cos.to(device, kept), sin.to(device, kept), options.interleaved};
}

}  // namespace megatron::kernels
