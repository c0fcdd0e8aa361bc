#pragma once
#include <ATen/core/Tensor.h>

// Matrix products of a linear layer y = x W^T, x [.., k], w [n, k], y [.., n]; the leading dimensions are one.
namespace megatron::kernels {

at::Tensor linear(const at::Tensor& x, const at::Tensor& w);
at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& w);
/// grad_w [n, k] (= or +=, by beta) dy^T x, straight into the gradient buffer.
void linear_weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta);

}  // namespace megatron::kernels
