#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/normalization.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <cmath>

#include "megatron/kernels/cpu/elementwise.h"
#include "megatron/kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

/// x * mask for elements [i, i + lanes) of the row.
HWY_INLINE F dropped(F x, const RowDropout& dropout, std::size_t i, std::size_t lanes) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  const auto words = lanes == hn::Lanes(d) ? hn::LoadU(du, dropout.words + i)
                                           : hn::MaskedLoad(hn::FirstN(du, lanes), du, dropout.words + i);
  const auto drop = hn::RebindMask(d, hn::Lt(words, hn::Set(du, dropout.threshold)));
  return hn::IfThenZeroElse(drop, hn::Mul(x, hn::Set(d, dropout.keep_scale)));
}

void add(float* x, const float* bias, const float* residual, std::size_t count, const RowDropout& dropout) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes) HWY_ATTR {
    F v = load(x + i, lanes);
    if (bias != nullptr) v = hn::Add(v, load(bias + i, lanes));
    if (dropout.words != nullptr) v = dropped(v, dropout, i, lanes);
    store(hn::Add(v, load(residual + i, lanes)), x + i, lanes);
  });
}

void drop(const float* x, float* y, std::size_t count, const RowDropout& dropout) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes)
                         HWY_ATTR { store(dropped(load(x + i, lanes), dropout, i, lanes), y + i, lanes); });
}

RowStatistics norm(const float* x, const float* weight, const float* bias, float* y, std::size_t count, float eps) {
  const Floats d;
  F sum = hn::Zero(d), squares = hn::Zero(d);
  for_vectors(count, [&](std::size_t i, std::size_t lanes) HWY_ATTR { sum = hn::Add(sum, load(x + i, lanes)); });
  const float mean = sum_of_lanes(sum) / static_cast<float>(count);
  const F centre = hn::Set(d, mean);
  for_vectors(count, [&](std::size_t i, std::size_t lanes) HWY_ATTR {
    F distance = hn::Sub(load(x + i, lanes), centre);
    if (lanes != hn::Lanes(d)) distance = hn::IfThenElseZero(hn::FirstN(d, lanes), distance);
    squares = hn::MulAdd(distance, distance, squares);
  });
  const float rstd = 1.0f / std::sqrt(sum_of_lanes(squares) / static_cast<float>(count) + eps);
  const F factor = hn::Set(d, rstd);
  for_vectors(count, [&](std::size_t i, std::size_t lanes) HWY_ATTR {
    const F normed = hn::Mul(hn::Sub(load(x + i, lanes), centre), factor);
    store(hn::MulAdd(normed, load(weight + i, lanes), load(bias + i, lanes)), y + i, lanes);
  });
  return {mean, rstd};
}

void norm_backward(const float* dy, const float* x, RowStatistics statistics, const float* weight,
                   const float* residual_gradient, float* dx, float* grad_weight, float* grad_bias, std::size_t count) {
  const Floats d;
  const F mean = hn::Set(d, statistics.mean), rstd = hn::Set(d, statistics.rstd);
  F sum = hn::Zero(d), sum_normed = hn::Zero(d);
  // Behind the last element dy and weight load as zeros, so the sums are right without a mask.
  for_vectors(count, [&](std::size_t i, std::size_t lanes) HWY_ATTR {
    const F normed = hn::Mul(hn::Sub(load(x + i, lanes), mean), rstd), g = load(dy + i, lanes);
    const F gw = hn::Mul(g, load(weight + i, lanes));
    sum = hn::Add(sum, gw);
    sum_normed = hn::MulAdd(gw, normed, sum_normed);
    store(hn::MulAdd(g, normed, load(grad_weight + i, lanes)), grad_weight + i, lanes);
    store(hn::Add(g, load(grad_bias + i, lanes)), grad_bias + i, lanes);
  });
  const F a = hn::Set(d, sum_of_lanes(sum) / static_cast<float>(count));
  const F c = hn::Set(d, sum_of_lanes(sum_normed) / static_cast<float>(count));
  for_vectors(count, [&](std::size_t i, std::size_t lanes) HWY_ATTR {
    const F normed = hn::Mul(hn::Sub(load(x + i, lanes), mean), rstd);
    const F gw = hn::Mul(load(dy + i, lanes), load(weight + i, lanes));
    F g = hn::Mul(rstd, hn::NegMulAdd(normed, c, hn::Sub(gw, a)));
    if (residual_gradient != nullptr) g = hn::Add(g, load(residual_gradient + i, lanes));
    store(g, dx + i, lanes);
  });
}

void accumulate(float* to, const float* from, std::size_t count) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes)
                         HWY_ATTR { store(hn::Add(load(to + i, lanes), load(from + i, lanes)), to + i, lanes); });
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(add);
HWY_EXPORT(drop);
HWY_EXPORT(norm);
HWY_EXPORT(norm_backward);
HWY_EXPORT(accumulate);

void bias_dropout_add_row(float* x, const float* bias, const float* residual, std::size_t count,
                          const RowDropout& dropout) {
  HWY_DYNAMIC_DISPATCH(add)(x, bias, residual, count, dropout);
}
void dropout_row(const float* x, float* y, std::size_t count, const RowDropout& dropout) {
  HWY_DYNAMIC_DISPATCH(drop)(x, y, count, dropout);
}
RowStatistics layer_norm_row(const float* x, const float* weight, const float* bias, float* y, std::size_t count,
                             float eps) {
  return HWY_DYNAMIC_DISPATCH(norm)(x, weight, bias, y, count, eps);
}
void layer_norm_backward_row(const float* dy, const float* x, RowStatistics statistics, const float* weight,
                             const float* residual_gradient, float* dx, float* grad_weight, float* grad_bias,
                             std::size_t count) {
  HWY_DYNAMIC_DISPATCH(norm_backward)(dy, x, statistics, weight, residual_gradient, dx, grad_weight, grad_bias, count);
}
void add_run(float* to, const float* from, std::size_t count) { HWY_DYNAMIC_DISPATCH(accumulate)(to, from, count); }

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
