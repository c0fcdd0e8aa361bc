#include "megatron/kernels/optimizer.h"

#include <c10/core/GradMode.h>

#include "megatron/kernels/reference.h"

namespace megatron::kernels {

void adamw_(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
            const AdamW& options) {
  const c10::NoGradGuard no_grad;
  reference::adamw_(param, grad, exp_avg, exp_avg_sq, options);
}

double sum_of_squares(const at::Tensor& x) {
  const c10::NoGradGuard no_grad;
  return reference::sum_of_squares(x);
}

double max_abs(const at::Tensor& x) {
  const c10::NoGradGuard no_grad;
  return reference::max_abs(x);
}

}  // namespace megatron::kernels
