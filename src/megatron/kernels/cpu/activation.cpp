#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/activation.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include "megatron/kernels/cpu/elementwise.h"
#include "megatron/kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr float kTwoSqrt2OverPi = 1.59576912160573071f, kCubic = 0.044715f;
constexpr float kInvSqrt2 = 0.70710678118654752f, kInvSqrt2Pi = 0.39894228040143268f;

/// 0.5 (1 + tanh(t)) = 1 / (1 + e^-2t) with t = sqrt(2/pi) (x + 0.044715 x^3), and the e^-2t in it.
HWY_INLINE F tanh_gate(F x, F x2, F& e) {
  const Floats d;
  const F one = hn::Set(d, 1.0f);
  e = exp(hn::Mul(hn::Mul(x, hn::Set(d, -kTwoSqrt2OverPi)), hn::MulAdd(hn::Set(d, kCubic), x2, one)));
  return hn::Div(one, hn::Add(one, e));
}

/// The normal distribution function, and e^(-x^2/2).
HWY_INLINE F normal_gate(F x, F& exp_minus_half_square) {
  const Floats d;
  const F half = hn::Set(d, 0.5f);
  return hn::MulAdd(half, erf(hn::Mul(x, hn::Set(d, kInvSqrt2)), exp_minus_half_square), half);
}

template <bool kTanh>
HWY_INLINE F gelu_of(F x) {
  F unused;
  return hn::Mul(x, kTanh ? tanh_gate(x, hn::Mul(x, x), unused) : normal_gate(x, unused));
}

template <bool kTanh>
HWY_INLINE F slope_of(F x) {
  const Floats d;
  const F one = hn::Set(d, 1.0f), x2 = hn::Mul(x, x);
  if constexpr (kTanh) {
    F e;
    const F s = tanh_gate(x, x2, e);
    const F inner = hn::Mul(hn::Set(d, kTwoSqrt2OverPi), hn::MulAdd(hn::Set(d, 3 * kCubic), x2, one));
    return hn::MulAdd(hn::Mul(x, inner), hn::Mul(s, hn::Mul(s, e)), s);  // 1 - s = s e, without cancellation
  } else {
    F density;
    const F gate = normal_gate(x, density);
    return hn::MulAdd(hn::Mul(x, hn::Set(d, kInvSqrt2Pi)), density, gate);
  }
}

template <bool kTanh>
HWY_INLINE void bias_gelu_of(float* x, const float* bias, float* y, std::size_t count) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes) HWY_ATTR {
    F u = load(x + i, lanes);
    if (bias != nullptr) {
      u = hn::Add(u, load(bias + i, lanes));
      store(u, x + i, lanes);
    }
    store(gelu_of<kTanh>(u), y + i, lanes);
  });
}
void bias_gelu(float* x, const float* bias, float* y, std::size_t count, bool tanh_form) {
  tanh_form ? bias_gelu_of<true>(x, bias, y, count) : bias_gelu_of<false>(x, bias, y, count);
}

template <bool kTanh>
HWY_INLINE void gelu_all(const float* u, float* y, std::size_t count) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes)
                         HWY_ATTR { store(gelu_of<kTanh>(load(u + i, lanes)), y + i, lanes); });
}
void gelu(const float* u, float* y, std::size_t count, bool tanh_form) {
  tanh_form ? gelu_all<true>(u, y, count) : gelu_all<false>(u, y, count);
}

template <bool kTanh>
HWY_INLINE void backward_all(float* dy, const float* u, std::size_t count) {
  for_vectors(count, [=](std::size_t i, std::size_t lanes) HWY_ATTR {
    store(hn::Mul(load(dy + i, lanes), slope_of<kTanh>(load(u + i, lanes))), dy + i, lanes);
  });
}
void backward(float* dy, const float* u, std::size_t count, bool tanh_form) {
  tanh_form ? backward_all<true>(dy, u, count) : backward_all<false>(dy, u, count);
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(bias_gelu);
HWY_EXPORT(gelu);
HWY_EXPORT(backward);

void bias_gelu_row(float* x, const float* bias, float* y, std::size_t count, bool tanh_form) {
  HWY_DYNAMIC_DISPATCH(bias_gelu)(x, bias, y, count, tanh_form);
}
void gelu_run(const float* u, float* y, std::size_t count, bool tanh_form) {
  HWY_DYNAMIC_DISPATCH(gelu)(u, y, count, tanh_form);
}
void gelu_backward_run(float* dy, const float* u, std::size_t count, bool tanh_form) {
  HWY_DYNAMIC_DISPATCH(backward)(dy, u, count, tanh_form);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
