#pragma once
#include "megatron/kernels/matmul.h"

namespace megatron::kernels::cuda {

/// kernels::linear_activation(), its product, bias and GELU in one kernel of cuBLASLt where it has one.
ActivatedOutput linear_activation(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, Activation form,
                                  bool gated, PackedWeight* packed);
/// kernels::linear_activation_gradient(), its product and GELU's derivative in one likewise.
ActivatedOutput linear_activation_gradient(const at::Tensor& dz, const at::Tensor& w, const at::Tensor& u,
                                           Activation form, bool gated, bool again, PackedWeight* packed);
/// kernels::linear_gradients() in one kernel of cuBLASLt, of float32 sums. False, and nothing was written, where it has
/// none.
bool linear_gradients(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta,
                      const at::Tensor& grad_bias, double bias_beta);

}  // namespace megatron::kernels::cuda
