#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

namespace megatron::kernels {

/// |got - truth| / |truth| by the 2-norm; float64 truth.
inline double relative_error(const at::Tensor& got, const at::Tensor& truth) {
  const double size = truth.norm().item<double>();
  return (got.to(at::kDouble) - truth).norm().item<double>() / (size > 0 ? size : 1.0);
}

inline at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble); }

}  // namespace megatron::kernels
