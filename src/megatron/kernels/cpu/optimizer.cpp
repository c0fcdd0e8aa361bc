#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/optimizer.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "megatron/kernels/cpu/elementwise.h"
#include "megatron/kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

void adamw(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, std::size_t count,
           const AdamWCoefficients& c) {
  const Floats d;
  const F grad_scale = hn::Set(d, c.grad_scale), beta1 = hn::Set(d, c.beta1), beta2 = hn::Set(d, c.beta2);
  const F one_minus_beta1 = hn::Set(d, c.one_minus_beta1), one_minus_beta2 = hn::Set(d, c.one_minus_beta2);
  const F decay = hn::Set(d, c.decay), step = hn::Set(d, c.step_size), eps = hn::Set(d, c.eps);
  const F correction = hn::Set(d, c.inverse_sqrt_correction2);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) HWY_ATTR {
    const F g = hn::Mul(load(grad + i, lanes), grad_scale);
    const F m = hn::MulAdd(one_minus_beta1, g, hn::Mul(beta1, load(exp_avg + i, lanes)));
    const F v = hn::MulAdd(hn::Mul(one_minus_beta2, g), g, hn::Mul(beta2, load(exp_avg_sq + i, lanes)));
    store(m, exp_avg + i, lanes);
    store(v, exp_avg_sq + i, lanes);
    const F update = hn::Div(m, hn::MulAdd(hn::Sqrt(v), correction, eps));
    store(hn::NegMulAdd(step, update, hn::Mul(load(param + i, lanes), decay)), param + i, lanes);
  });
}

double squares(const float* x, std::size_t count) {
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, decltype(dd)> half;
  const std::size_t lanes = hn::Lanes(dd);
  auto sum0 = hn::Zero(dd), sum1 = hn::Zero(dd);
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto a = hn::PromoteTo(dd, hn::LoadU(half, x + i)), b = hn::PromoteTo(dd, hn::LoadU(half, x + i + lanes));
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  double sum = hn::GetLane(hn::SumOfLanes(dd, hn::Add(sum0, sum1)));
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

float largest(const float* x, std::size_t count) {
  const Floats d;
  F max = hn::Zero(d);
  auto nan = hn::FirstN(d, 0);
  for_vectors(count, [&](std::size_t i, std::size_t lanes) HWY_ATTR {
    const F v = load(x + i, lanes);
    nan = hn::Or(nan, hn::IsNaN(v));
    max = hn::Max(max, hn::Abs(v));
  });
  return hn::AllFalse(d, nan) ? max_of_lanes(max) : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(adamw);
HWY_EXPORT(squares);
HWY_EXPORT(largest);

void adamw_run(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, std::size_t count,
               const AdamWCoefficients& coefficients) {
  HWY_DYNAMIC_DISPATCH(adamw)(param, grad, exp_avg, exp_avg_sq, count, coefficients);
}
double sum_of_squares_run(const float* x, std::size_t count) { return HWY_DYNAMIC_DISPATCH(squares)(x, count); }
float max_abs_run(const float* x, std::size_t count) { return HWY_DYNAMIC_DISPATCH(largest)(x, count); }

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
