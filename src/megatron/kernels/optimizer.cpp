#include "megatron/kernels/optimizer.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "megatron/kernels/cpu/elementwise.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 16;

std::int64_t num_blocks(const at::Tensor& x) { return (x.numel() + kBlock - 1) / kBlock; }
std::size_t block_size(const at::Tensor& x, std::int64_t block) {
  return static_cast<std::size_t>(std::min(kBlock, x.numel() - block * kBlock));
}

/// run(pointer, count) of each block of x, in order of the blocks.
template <class T>
std::vector<T> by_block(const at::Tensor& x, T (*run)(const float*, std::size_t)) {
  std::vector<T> results(static_cast<std::size_t>(num_blocks(x)));
  const float* data = x.const_data_ptr<float>();
  cpu::for_each_block(num_blocks(x), [&](std::int64_t i, int) {
    results[static_cast<std::size_t>(i)] = run(data + i * kBlock, block_size(x, i));
  });
  return results;
}

}  // namespace

void adam_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
           const at::Tensor& exp_avg_sq, const Adam& adam, const Update& o) {
  const c10::NoGradGuard no_grad;
  if (!cpu::all_fast(param, grad, exp_avg, exp_avg_sq) || model.defined() || !o.decoupled) {
    return reference::adam_(param, model, grad, exp_avg, exp_avg_sq, adam, o);
  }
  const double correction1 = 1 - std::pow(adam.beta1, static_cast<double>(o.step));
  const double correction2 = 1 - std::pow(adam.beta2, static_cast<double>(o.step));
  const cpu::AdamWCoefficients coefficients{.grad_scale = static_cast<float>(o.grad_scale),
                                            .beta1 = static_cast<float>(adam.beta1),
                                            .one_minus_beta1 = static_cast<float>(1 - adam.beta1),
                                            .beta2 = static_cast<float>(adam.beta2),
                                            .one_minus_beta2 = static_cast<float>(1 - adam.beta2),
                                            .decay = static_cast<float>(1 - o.learning_rate * o.weight_decay),
                                            .step_size = static_cast<float>(o.learning_rate / correction1),
                                            .inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(correction2)),
                                            .eps = static_cast<float>(adam.eps)};
  float *p = param.mutable_data_ptr<float>(), *m = exp_avg.mutable_data_ptr<float>();
  float* v = exp_avg_sq.mutable_data_ptr<float>();
  const float* g = grad.const_data_ptr<float>();
  cpu::for_each_block(num_blocks(param), [&](std::int64_t i, int) {
    const std::int64_t at = i * kBlock;
    cpu::adamw_run(p + at, g + at, m + at, v + at, block_size(param, i), coefficients);
  });
}

void sgd_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& momentum_buffer,
          double momentum, const Update& update) {
  const c10::NoGradGuard no_grad;
  reference::sgd_(param, model, grad, momentum_buffer, momentum, update);
}

void lion_(const at::Tensor& param, const at::Tensor& model, const at::Tensor& grad, const at::Tensor& exp_avg,
           const Lion& lion, const Update& update) {
  const c10::NoGradGuard no_grad;
  reference::lion_(param, model, grad, exp_avg, lion, update);
}

double sum_of_squares(const at::Tensor& x) {
  const c10::NoGradGuard no_grad;
  if (!cpu::fast(x)) return reference::sum_of_squares(x);
  double sum = 0;
  for (const double part : by_block(x, cpu::sum_of_squares_run)) sum += part;
  return sum;
}

double max_abs(const at::Tensor& x) {
  const c10::NoGradGuard no_grad;
  if (!cpu::fast(x)) return reference::max_abs(x);
  float largest = 0;
  for (const float part : by_block(x, cpu::max_abs_run)) {
    if (std::isnan(part)) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, part);
  }
  return static_cast<double>(largest);
}

}  // namespace megatron::kernels
