#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

namespace megatron::kernels::reference {

/// What a kernel computes in: float64 for float64 tensors, float32 for all others.
inline at::ScalarType compute_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}
inline at::Tensor up(const at::Tensor& x) { return x.to(compute_type(x)); }

/// target = beta * target + value for beta 0 or 1 (0 overwrites, whatever was there).
inline void write_or_add(const at::Tensor& target, const at::Tensor& value, double beta) {
  if (beta == 0) {
    target.copy_(value.view_as(target));
  } else {
    target.copy_(target * beta + value.view_as(target));
  }
}

}  // namespace megatron::kernels::reference
