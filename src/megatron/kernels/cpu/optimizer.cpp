#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/optimizer.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "megatron/kernels/cpu/elementwise/vector_body.h"
#include "megatron/kernels/cpu/products/half-inl.h"
#include "megatron/kernels/cpu/update.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

/// Asks for what comes `kAhead` numbers later: the processor alone does not keep up with as many streams.
template <class... Numbers>
HWY_INLINE void ask_ahead(std::size_t i, const Numbers*... x) {
  constexpr std::size_t kAhead = 512;
  (hwy::Prefetch(x + i + kAhead), ...);
}

/// The gradient that the update follows. Without decay an infinite parameter does not make it NaN.
HWY_INLINE F gradient(F grad, F param, const UpdateCoefficients& c) {
  const Floats d;
  const F g = hn::Mul(grad, hn::Set(d, c.grad_scale));
  return c.l2 != 0 ? hn::MulAdd(hn::Set(d, c.l2), param, g) : g;
}

void adam(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, std::size_t count,
          const AdamCoefficients& c) {
  const Floats d;
  const F beta1 = hn::Set(d, c.beta1), beta2 = hn::Set(d, c.beta2);
  const F one_minus_beta1 = hn::Set(d, c.one_minus_beta1), one_minus_beta2 = hn::Set(d, c.one_minus_beta2);
  const F decay = hn::Set(d, c.update.decay), step = hn::Set(d, c.step_size), eps = hn::Set(d, c.eps);
  const F correction = hn::Set(d, c.inverse_sqrt_correction2);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    ask_ahead(i, param, grad, exp_avg, exp_avg_sq);
    const F p = load(param + i, lanes), g = gradient(load(grad + i, lanes), p, c.update);
    const F m = hn::MulAdd(one_minus_beta1, g, hn::Mul(beta1, load(exp_avg + i, lanes)));
    const F v = hn::MulAdd(hn::Mul(one_minus_beta2, g), g, hn::Mul(beta2, load(exp_avg_sq + i, lanes)));
    store(m, exp_avg + i, lanes);
    store(v, exp_avg_sq + i, lanes);
    const F direction = hn::Div(m, hn::MulAdd(hn::Sqrt(v), correction, eps));
    store(hn::NegMulAdd(step, direction, hn::Mul(p, decay)), param + i, lanes);
  });
}

void sgd(float* param, const float* grad, float* momentum, std::size_t count, const SgdCoefficients& c) {
  const Floats d;
  const F decay = hn::Set(d, c.update.decay), rate = hn::Set(d, c.learning_rate), keep = hn::Set(d, c.momentum);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F p = load(param + i, lanes);
    F direction = gradient(load(grad + i, lanes), p, c.update);
    if (momentum != nullptr) {
      direction = hn::MulAdd(keep, load(momentum + i, lanes), direction);
      store(direction, momentum + i, lanes);
    }
    store(hn::NegMulAdd(rate, direction, hn::Mul(p, decay)), param + i, lanes);
  });
}

void lion(float* param, const float* grad, float* exp_avg, std::size_t count, const LionCoefficients& c) {
  const Floats d;
  const F beta1 = hn::Set(d, c.beta1), beta2 = hn::Set(d, c.beta2), zero = hn::Zero(d);
  const F one_minus_beta1 = hn::Set(d, c.one_minus_beta1), one_minus_beta2 = hn::Set(d, c.one_minus_beta2);
  const F decay = hn::Set(d, c.update.decay), rate = hn::Set(d, c.learning_rate);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F p = load(param + i, lanes), g = gradient(load(grad + i, lanes), p, c.update);
    const F m = load(exp_avg + i, lanes);
    const F direction = hn::MulAdd(one_minus_beta1, g, hn::Mul(beta1, m));
    store(hn::MulAdd(one_minus_beta2, g, hn::Mul(beta2, m)), exp_avg + i, lanes);
    const F step = hn::IfThenElseZero(hn::Ne(direction, zero), hn::CopySign(rate, direction));
    store(hn::Sub(hn::Mul(p, decay), step), param + i, lanes);
  });
}

double squares(const float* x, std::size_t count) {
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, decltype(dd)> half;
  const std::size_t lanes = hn::Lanes(dd);
  auto sum0 = hn::Zero(dd), sum1 = hn::Zero(dd);
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    ask_ahead(i, x);
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
  for_vectors(count, [&](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F v = load(x + i, lanes);
    nan = hn::Or(nan, hn::IsNaN(v));
    max = hn::Max(max, hn::Abs(v));
  });
  return hn::AllFalse(d, nan) ? max_of_lanes(max) : std::numeric_limits<float>::quiet_NaN();
}

template <class T>
HWY_INLINE void widen(const T* from, float* to, std::size_t count) {
  for_vectors(count,
              [=](std::size_t i, std::size_t lanes) VECTOR_BODY { store(load(from + i, lanes), to + i, lanes); });
}
void widen_bf16(const c10::BFloat16* from, float* to, std::size_t count) { widen(from, to, count); }
void widen_fp16(const c10::Half* from, float* to, std::size_t count) { widen(from, to, count); }

template <class T>
HWY_INLINE void narrow(const float* from, T* to, std::size_t count) {
  for_vectors(count,
              [=](std::size_t i, std::size_t lanes) VECTOR_BODY { store(load(from + i, lanes), to + i, lanes); });
}
void narrow_bf16(const float* from, c10::BFloat16* to, std::size_t count) { narrow(from, to, count); }
void narrow_fp16(const float* from, c10::Half* to, std::size_t count) { narrow(from, to, count); }

/// narrow_bf16() around the caches, where `to` is aligned to a vector: what is only written need not be read first.
void stream_bf16(const float* from, c10::BFloat16* to, std::size_t count) {
  const std::size_t lanes = hn::Lanes(Floats());
  if (reinterpret_cast<std::uintptr_t>(to) % (lanes * sizeof(c10::BFloat16)) != 0) return narrow(from, to, count);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::Stream(to_bf16(load(from + i, lanes)), Halves(), reinterpret_cast<std::uint16_t*>(to + i));
  narrow(from + i, to + i, count - i);
  hwy::FlushStream();
}

void narrow_stochastically(const float* from, const std::uint32_t* words, c10::BFloat16* to, std::size_t count) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  const auto last = hn::Set(du, 0xFFFF0000u);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F v = load(from + i, lanes);
    const auto bits = hn::BitCast(du, v);
    const auto word = hn::BitCast(du, load(reinterpret_cast<const float*>(words + i), lanes));
    const F moved = hn::BitCast(d, hn::And(hn::Add(bits, hn::ShiftRight<16>(word)), last));
    store(hn::IfThenElse(hn::IsFinite(v), moved, v), to + i, lanes);  // `moved` is a bf16 number: stored as it is
  });
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(adam);
HWY_EXPORT(sgd);
HWY_EXPORT(lion);
HWY_EXPORT(squares);
HWY_EXPORT(largest);
HWY_EXPORT(widen_bf16);
HWY_EXPORT(widen_fp16);
HWY_EXPORT(narrow_bf16);
HWY_EXPORT(narrow_fp16);
HWY_EXPORT(stream_bf16);
HWY_EXPORT(narrow_stochastically);

void adam_run(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, std::size_t count,
              const AdamCoefficients& coefficients) {
  HWY_DYNAMIC_DISPATCH(adam)(param, grad, exp_avg, exp_avg_sq, count, coefficients);
}
void sgd_run(float* param, const float* grad, float* momentum, std::size_t count, const SgdCoefficients& coefficients) {
  HWY_DYNAMIC_DISPATCH(sgd)(param, grad, momentum, count, coefficients);
}
void lion_run(float* param, const float* grad, float* exp_avg, std::size_t count,
              const LionCoefficients& coefficients) {
  HWY_DYNAMIC_DISPATCH(lion)(param, grad, exp_avg, count, coefficients);
}
double sum_of_squares_run(const float* x, std::size_t count) { return HWY_DYNAMIC_DISPATCH(squares)(x, count); }
float max_abs_run(const float* x, std::size_t count) { return HWY_DYNAMIC_DISPATCH(largest)(x, count); }

void widen_run(const c10::BFloat16* from, float* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(widen_bf16)(from, to, count);
}
void widen_run(const c10::Half* from, float* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(widen_fp16)(from, to, count);
}
void narrow_run(const float* from, c10::BFloat16* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(narrow_bf16)(from, to, count);
}
void narrow_run(const float* from, c10::Half* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(narrow_fp16)(from, to, count);
}
void stream_run(const float* from, c10::BFloat16* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(stream_bf16)(from, to, count);
}
void narrow_stochastically_run(const float* from, const std::uint32_t* words, c10::BFloat16* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(narrow_stochastically)(from, words, to, count);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
