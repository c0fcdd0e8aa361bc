#pragma once
#include <ATen/core/Tensor.h>

namespace megatron::kernels {

/// tanh: 0.5 x (1 + tanh(0.79788456 (x + 0.044715 x^3))), Megatron's fused bias-GELU; erf: exact (Hendrycks & Gimpel
/// 2016).
enum class Gelu { Tanh, Erf };

/// y = gelu(x + bias). x [.., f] is overwritten with x + bias, which the backward pass needs; bias [f] may be
/// undefined.
at::Tensor bias_gelu(at::Tensor x, const at::Tensor& bias, Gelu form);

/// dx = dy * gelu'(u), with u = x + bias as bias_gelu left it. Overwrites and returns dy.
at::Tensor gelu_backward(at::Tensor dy, const at::Tensor& u, Gelu form);

/// y = gelu(u) again from u: recomputing it in the backward pass is cheaper than keeping it.
at::Tensor gelu(const at::Tensor& u, Gelu form);

}  // namespace megatron::kernels
