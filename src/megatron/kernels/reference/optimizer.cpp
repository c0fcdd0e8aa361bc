#include "megatron/kernels/optimizer.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "megatron/kernels/reference.h"

namespace megatron::kernels::reference {

void adamw_(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
            const AdamW& o) {
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(o.step));
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(o.step));
  const at::Tensor g = grad.to(param.scalar_type()) * o.grad_scale;
  exp_avg.mul_(o.beta1).add_(g, 1 - o.beta1);
  exp_avg_sq.mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
  const at::Tensor denominator = exp_avg_sq.sqrt().mul_(1 / std::sqrt(correction2)).add_(o.eps);
  param.mul_(1 - o.learning_rate * o.weight_decay);
  param.addcdiv_(exp_avg, denominator, -o.learning_rate / correction1);
}

double sum_of_squares(const at::Tensor& x) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;  // bounds the float64 copy
  double sum = 0;
  for (std::int64_t at = 0; at < x.numel(); at += kBlock) {
    sum += x.narrow(0, at, std::min(kBlock, x.numel() - at)).to(at::kDouble).square().sum().item<double>();
  }
  return sum;
}

double max_abs(const at::Tensor& x) { return x.numel() == 0 ? 0.0 : x.abs().max().item<double>(); }

}  // namespace megatron::kernels::reference
