#pragma once
#include <ATen/core/Tensor.h>

// Matrix products of a linear layer y = x W^T, x [.., k], w [n, k], y [.., n]; the leading dimensions are one. float64,
// float32, bf16, fp16; sums of bf16 and fp16 are taken in float32, and rounded once.
namespace megatron::kernels {

/// Of x's dtype. With few rows of x (decoding), W is read once, at the speed of memory.
at::Tensor linear(const at::Tensor& x, const at::Tensor& w);
at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& w);
/// grad_w [n, k] (= or +=, by beta) dy^T x, straight into the gradient buffer, which may be float32 where dy and x are
/// bf16 or fp16.
void linear_weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta);

}  // namespace megatron::kernels
