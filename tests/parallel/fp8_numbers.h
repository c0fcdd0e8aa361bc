#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "megatron/kernels/fp8/fp8.h"
#include "megatron/parallel/fp8.h"
#include "megatron/plan/parameters/fp8.h"

// The numbers of 8-bit formats and rounding to them, from their definitions.
namespace megatron::testing {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// What the 256 bytes stand for, from the definitions of Micikevicius et al. 2022, table 1.
inline std::vector<double> numbers_of(plan::Fp8Type type) {
  const bool fine = type == plan::Fp8Type::E4M3;
  const int mantissa_bits = fine ? 3 : 2, bias = fine ? 7 : 15, exponents = fine ? 16 : 32;
  std::vector<double> numbers;
  for (int byte = 0; byte < 256; ++byte) {
    const int mantissa = byte & ((1 << mantissa_bits) - 1), exponent = byte >> mantissa_bits & (exponents - 1);
    const double sign = byte >= 128 ? -1 : 1, fraction = std::ldexp(mantissa, -mantissa_bits);
    double number = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    if (fine && exponent == 15 && mantissa == 7) number = kNaN;
    if (!fine && exponent == 31) number = mantissa == 0 ? std::numeric_limits<double>::infinity() : kNaN;
    numbers.push_back(sign * number);
  }
  return numbers;
}

/// The finite ones from 0 on, ascending: by their bytes.
inline std::vector<double> magnitudes_of(plan::Fp8Type type) {
  std::vector<double> numbers = numbers_of(type);
  numbers.resize(128);
  std::erase_if(numbers, [](double number) { return !std::isfinite(number); });
  return numbers;
}

/// The nearest of these, ties to the even byte, the largest for what is beyond: by looking at each.
inline double nearest(const std::vector<double>& magnitudes, double x) {
  const double magnitude = std::min(std::abs(x), magnitudes.back());
  std::size_t best = 0;
  for (std::size_t i = 1; i < magnitudes.size(); ++i) {
    const double apart = std::abs(magnitude - magnitudes[i]), before = std::abs(magnitude - magnitudes[best]);
    if (apart < before || (apart == before && i % 2 == 0)) best = i;
  }
  return std::copysign(magnitudes[best], x);
}

inline at::Tensor tensor_of(const std::vector<double>& numbers) {
  at::Tensor x = at::zeros({static_cast<std::int64_t>(numbers.size())}, at::kDouble);
  std::copy(numbers.begin(), numbers.end(), x.mutable_data_ptr<double>());
  return x;
}

inline std::vector<double> list_of(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

/// The functions of kernels/fp8/fp8.h, of a plan's type.
inline at::Tensor fp8_quantized(const at::Tensor& x, plan::Fp8Type type, const kernels::Fp8Scale& scale) {
  return kernels::fp8_numbers(x, parallel::scalar_type_of(type), scale, {}, {}).rows;
}
inline at::Tensor fp8_rounded(const at::Tensor& x, plan::Fp8Type type, const kernels::Fp8Scale& scale) {
  return kernels::fp8_rounded(x, parallel::scalar_type_of(type), scale, {});
}
inline kernels::Fp8Blocks fp8_in_blocks(const at::Tensor& x, plan::Fp8Type type, kernels::Fp8Tile tile) {
  return kernels::fp8_in_blocks(x, parallel::scalar_type_of(type), tile);
}
inline at::Tensor fp8_rounded_in_blocks(const at::Tensor& x, plan::Fp8Type type, kernels::Fp8Tile tile) {
  return kernels::fp8_rounded_in_blocks(x, parallel::scalar_type_of(type), tile);
}

}  // namespace megatron::testing
