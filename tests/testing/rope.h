#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <vector>

#include "megatron/kernels/rope.h"

// Rotary positions by hand, for dense_model.h.
namespace megatron::testing {

/// Radians a position of pair i: base^(-2i/d); with Llama 3's scaling those of long waves divided by the factor.
inline double frequency(const kernels::RopeOptions& rope, std::int64_t i) {
  const double plain = 1 / std::pow(rope.base, 2.0 * static_cast<double>(i) / static_cast<double>(rope.rotary_dim));
  const double wavelength = 2 * M_PI / plain, context = static_cast<double>(rope.scaling.original_positions);
  const double low = rope.scaling.low_freq_factor, high = rope.scaling.high_freq_factor;
  if (rope.scaling.factor == 1 || wavelength < context / high) return plain;
  if (wavelength > context / low) return plain / rope.scaling.factor;
  const double smooth = (context / wavelength - low) / (high - low);
  return (1 - smooth) * plain / rope.scaling.factor + smooth * plain;
}
/// heads [b, n, s, d], each pair of features turned as a complex number is by e^(i * position * frequency); positions
/// [b, s].
inline at::Tensor turned(const at::Tensor& heads, const kernels::RopeOptions& rope, const at::Tensor& positions_bs) {
  const std::int64_t d = heads.size(-1), rotary = rope.rotary_dim;
  if (rotary == 0) return heads;
  const auto positions = positions_bs.to(at::kDouble).unsqueeze(1);  // [b, 1, s]
  std::vector<at::Tensor> features(static_cast<std::size_t>(d));
  for (std::int64_t j = rotary; j < d; ++j) features[static_cast<std::size_t>(j)] = heads.select(-1, j);
  for (std::int64_t i = 0; i < rotary / 2; ++i) {
    const std::int64_t first = rope.interleaved ? 2 * i : i, second = rope.interleaved ? first + 1 : i + rotary / 2;
    const auto angle = positions * frequency(rope, i);
    const auto x = heads.select(-1, first), y = heads.select(-1, second);
    features[static_cast<std::size_t>(first)] = x * angle.cos() - y * angle.sin();
    features[static_cast<std::size_t>(second)] = x * angle.sin() + y * angle.cos();
  }
  return at::stack(features, -1);
}

}  // namespace megatron::testing
