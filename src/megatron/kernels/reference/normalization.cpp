#include "megatron/kernels/normalization.h"

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

namespace megatron::kernels::reference {
namespace {

at::Tensor mask_like(const at::Tensor& x_sbh, const Dropout& dropout) {
  return reference::dropout_mask(dropout, x_sbh.size(0), x_sbh.size(1), x_sbh.size(2), x_sbh.scalar_type(),
                                 x_sbh.device());
}

}  // namespace

NormOutput layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  const at::Tensor rows = up(x).reshape({-1, x.size(-1)});
  const at::Tensor mean = rows.mean(1), centred = rows - mean.unsqueeze(1);
  const at::Tensor rstd = (centred.square().mean(1) + eps).rsqrt();
  const at::Tensor y = centred * rstd.unsqueeze(1) * up(weight) + up(bias);
  return {y.to(x.scalar_type()).view(x.sizes()), mean, rstd};
}

at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                               const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& grad_weight,
                               const at::Tensor& grad_bias, double beta, const at::Tensor& residual_gradient) {
  const at::Tensor g = up(dy).reshape({-1, x.size(-1)});
  const at::Tensor normed = (up(x).reshape({-1, x.size(-1)}) - mean.unsqueeze(1)) * rstd.unsqueeze(1);
  write_or_add(grad_weight, (g * normed).sum(0), beta);
  write_or_add(grad_bias, g.sum(0), beta);
  const at::Tensor gw = g * up(weight);
  at::Tensor dx = (gw - gw.mean(1, true) - normed * (gw * normed).mean(1, true)) * rstd.unsqueeze(1);
  dx = dx.view(x.sizes());
  if (residual_gradient.defined()) dx = dx + residual_gradient;
  return dx.to(x.scalar_type());
}

at::Tensor bias_dropout_add(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual, const Dropout& dropout) {
  if (bias.defined()) x.add_(bias);
  if (dropout.p > 0) x.mul_(mask_like(x, dropout));
  return x.add_(residual);
}

at::Tensor dropout_backward(const at::Tensor& dy, const Dropout& dropout) {
  return dropout.p > 0 ? dy * mask_like(dy, dropout) : dy;
}

AddNormOutput bias_dropout_add_norm(at::Tensor x, const at::Tensor& bias, const at::Tensor& residual,
                                    const Dropout& dropout, const at::Tensor& weight, const at::Tensor& norm_bias,
                                    double eps) {
  const at::Tensor sum = reference::bias_dropout_add(x, bias, residual, dropout);
  const NormOutput norm = reference::layer_norm(sum, weight, norm_bias, eps);
  return {sum, norm.y, norm.mean, norm.rstd};
}

void accumulate_bias_gradient(const at::Tensor& grad_bias, const at::Tensor& dy, double beta) {
  write_or_add(grad_bias, dy.reshape({-1, dy.size(-1)}).sum(0, false, at::kDouble).to(grad_bias.scalar_type()), beta);
}

}  // namespace megatron::kernels::reference
