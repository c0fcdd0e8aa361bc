#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <algorithm>

#include "megatron/kernels/activation.h"

namespace megatron::kernels {

/// |got - truth| / |truth| by the 2-norm; float64 truth.
/// `least`: what the error is relative to at least, where the truth may be small for what it is a sum of.
inline double relative_error(const at::Tensor& got, const at::Tensor& truth, double least = 0) {
  const double size = std::max(truth.norm().item<double>(), least);
  return (got.to(at::kDouble) - truth).norm().item<double>() / (size > 0 ? size : 1.0);
}

inline at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble); }

/// Largest relative error of rounding to nearest.
inline double unit_roundoff(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : dtype == at::kFloat ? 0x1p-24 : 0x1p-53;
}

/// How far `got` is from `truth` (float64) beyond one rounding to its dtype, at the worst element.
inline double error_beyond_rounding(const at::Tensor& got, const at::Tensor& truth) {
  const at::Tensor allowed = truth.abs() * unit_roundoff(got.scalar_type());
  return ((got.to(at::kDouble) - truth).abs() - allowed).max().item<double>();
}

/// Every kind of activation, some of them clamped and with values offset by 1.
inline constexpr Activation kForms[] = {Activation::GeluTanh,
                                        Activation::GeluErf,
                                        Activation::Silu,
                                        Activation::Relu,
                                        Activation::SquaredRelu,
                                        Activation::QuickGelu,
                                        {Activation::QuickGelu, 0.75, 1},
                                        {Activation::Silu, 1.25}};

inline constexpr at::ScalarType kHalves[] = {at::kBFloat16, at::kHalf};

/// [b, s] int32: of windows of `window` keys, the query's own among them.
inline at::Tensor first_keys_of_windows(std::int64_t batch, std::int64_t queries, std::int64_t window) {
  return (at::arange(queries, at::kInt) - (window - 1)).clamp_min(0).expand({batch, queries}).contiguous();
}

}  // namespace megatron::kernels
