#include "megatron/kernels/normalization.h"

#include <c10/core/GradMode.h>

#include "megatron/kernels/reference.h"

namespace megatron::kernels {

NormOutput layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  const c10::NoGradGuard no_grad;
  return reference::layer_norm(x, weight, bias, eps);
}

at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                               const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& grad_weight,
                               const at::Tensor& grad_bias, double beta, const at::Tensor& residual_gradient) {
  const c10::NoGradGuard no_grad;
  return reference::layer_norm_backward(dy, x, mean, rstd, weight, grad_weight, grad_bias, beta, residual_gradient);
}

at::Tensor bias_dropout_add(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual, const Dropout& dropout) {
  const c10::NoGradGuard no_grad;
  return reference::bias_dropout_add(std::move(x), bias, residual, dropout);
}

at::Tensor dropout_backward(const at::Tensor& dy, const Dropout& dropout) {
  const c10::NoGradGuard no_grad;
  return reference::dropout_backward(dy, dropout);
}

AddNormOutput bias_dropout_add_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                    const Dropout& dropout, const at::Tensor& weight, const at::Tensor& norm_bias,
                                    double eps) {
  const c10::NoGradGuard no_grad;
  return reference::bias_dropout_add_norm(std::move(x), bias, residual, dropout, weight, norm_bias, eps);
}

void accumulate_bias_gradient(const at::Tensor& grad_bias, const at::Tensor& dy, double beta) {
  const c10::NoGradGuard no_grad;
  reference::accumulate_bias_gradient(grad_bias, dy, beta);
}

}  // namespace megatron::kernels
