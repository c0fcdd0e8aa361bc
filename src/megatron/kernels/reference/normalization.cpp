#include "megatron/kernels/normalization.h"

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

namespace megatron::kernels::reference {
namespace {

/// The mask that multiplies up(x): in bf16 the factor 1/(1-p) itself would be rounded.
at::Tensor mask_like(const at::Tensor& x_sbh, const Dropout& dropout) {
  return reference::dropout_mask(dropout, x_sbh.size(0), x_sbh.size(1), x_sbh.size(2), compute_type(x_sbh),
                                 x_sbh.device());
}

at::Tensor rows_of(const at::Tensor& x) { return up(x).reshape({-1, x.size(-1)}); }

/// What came through the norm and what came past it, in the shape and dtype of x.
at::Tensor input_gradient(const at::Tensor& dx, const at::Tensor& x, const at::Tensor& residual_gradient) {
  const at::Tensor through = dx.view(x.sizes());
  return (residual_gradient.defined() ? through + residual_gradient : through).to(x.scalar_type());
}

}  // namespace

NormOutput layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  const at::Tensor rows = rows_of(x);
  const at::Tensor mean = rows.mean(1), centred = rows - mean.unsqueeze(1);
  const at::Tensor rstd = (centred.square().mean(1) + eps).rsqrt();
  const at::Tensor y = centred * rstd.unsqueeze(1) * up(weight) + up(bias);
  return {y.to(x.scalar_type()).view(x.sizes()), mean, rstd};
}

at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                               const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& grad_weight,
                               const at::Tensor& grad_bias, double beta, const at::Tensor& residual_gradient) {
  const at::Tensor g = rows_of(dy);
  const at::Tensor normed = (rows_of(x) - mean.unsqueeze(1)) * rstd.unsqueeze(1);
  write_or_add(grad_weight, (g * normed).sum(0), beta);
  write_or_add(grad_bias, g.sum(0), beta);
  const at::Tensor gw = g * up(weight);
  const at::Tensor dx = (gw - gw.mean(1, true) - normed * (gw * normed).mean(1, true)) * rstd.unsqueeze(1);
  return input_gradient(dx, x, residual_gradient);
}

NormOutput rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor rows = rows_of(x);
  const at::Tensor rstd = (rows.square().mean(1) + eps).rsqrt();
  return {(rows * rstd.unsqueeze(1) * up(weight)).to(x.scalar_type()).view(x.sizes()), {}, rstd};
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                             const at::Tensor& weight, const at::Tensor& grad_weight, double beta,
                             const at::Tensor& residual_gradient) {
  const at::Tensor g = rows_of(dy), normed = rows_of(x) * rstd.unsqueeze(1);
  write_or_add(grad_weight, (g * normed).sum(0), beta);
  const at::Tensor gw = g * up(weight);
  return input_gradient((gw - normed * (gw * normed).mean(1, true)) * rstd.unsqueeze(1), x, residual_gradient);
}

at::Tensor bias_dropout_add(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual, const Dropout& dropout) {
  at::Tensor sum = up(x);
  if (bias.defined()) sum = sum + bias;
  if (dropout.p > 0) sum = sum * mask_like(x, dropout);
  return x.copy_(sum + residual);
}

at::Tensor dropout_backward(const at::Tensor& dy, const Dropout& dropout) {
  return dropout.p > 0 ? (up(dy) * mask_like(dy, dropout)).to(dy.scalar_type()) : dy;
}

AddNormOutput bias_dropout_add_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                    const Dropout& dropout, const at::Tensor& weight, const at::Tensor& norm_bias,
                                    double eps) {
  const at::Tensor sum = reference::bias_dropout_add(x, bias, residual, dropout);
  const NormOutput norm = reference::layer_norm(sum, weight, norm_bias, eps);
  return {sum, norm.y, norm.mean, norm.rstd};
}

AddNormOutput bias_dropout_add_rms_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                        const Dropout& dropout, const at::Tensor& weight, double eps) {
  const at::Tensor sum = reference::bias_dropout_add(x, bias, residual, dropout);
  const NormOutput norm = reference::rms_norm(sum, weight, eps);
  return {sum, norm.y, {}, norm.rstd};
}

void accumulate_bias_gradient(const at::Tensor& grad_bias, const at::Tensor& dy, double beta) {
  write_or_add(grad_bias, dy.reshape({-1, dy.size(-1)}).sum(0, false, at::kDouble).to(compute_type(grad_bias)), beta);
}

AddNormInputGradients bias_dropout_add_norm_backward(const at::Tensor& dy, const at::Tensor& sum,
                                                     const at::Tensor& mean, const at::Tensor& rstd,
                                                     const at::Tensor& weight, const at::Tensor& residual_gradient,
                                                     const Dropout& dropout, const AddNormGradients& into) {
  const at::Tensor residual =
      mean.defined()
          ? reference::layer_norm_backward(dy, sum, mean, rstd, weight, into.weight, into.norm_bias, into.norm_beta,
                                           residual_gradient)
          : reference::rms_norm_backward(dy, sum, rstd, weight, into.weight, into.norm_beta, residual_gradient);
  const at::Tensor x = reference::dropout_backward(residual, dropout);
  if (into.bias.defined()) reference::accumulate_bias_gradient(into.bias, x, into.bias_beta);
  return {residual, x};
}

void linear_gradients(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta,
                      const at::Tensor& grad_bias, double bias_beta) {
  reference::linear_weight_gradient(grad_w, dy, x, beta);
  reference::accumulate_bias_gradient(grad_bias, dy, bias_beta);
}

}  // namespace megatron::kernels::reference
