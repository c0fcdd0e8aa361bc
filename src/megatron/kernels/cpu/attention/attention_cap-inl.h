// Soft caps of scores (Gemma 2): c tanh(x / c).
#if defined(MEGATRON_KERNELS_CPU_ATTENTION_CAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_ATTENTION_CAP_INL_H_
#undef MEGATRON_KERNELS_CPU_ATTENTION_CAP_INL_H_
#else
#define MEGATRON_KERNELS_CPU_ATTENTION_CAP_INL_H_
#endif

#include "megatron/kernels/cpu/attention/attention.h"
#include "megatron/kernels/cpu/elementwise/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

/// tanh(x) to 3e-7, given 2x.
HWY_INLINE F tanh_of_half(F twice) {
  const Floats d;
  const F one = hn::Set(d, 1.0f), x = hn::Mul(twice, hn::Set(d, 0.5f)), x2 = hn::Mul(x, x);
  const F far = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(exp(twice), one)));
  F near = hn::MulAdd(x2, hn::Set(d, -17.0f / 315), hn::Set(d, 2.0f / 15));  // where that would lose digits
  near = hn::MulAdd(hn::MulAdd(near, x2, hn::Set(d, -1.0f / 3)), hn::Mul(x, x2), x);
  return hn::IfThenElse(hn::Lt(x2, hn::Set(d, 0.03f)), near, far);
}

/// Scores s of a query, of which [begin, end) matter, become the scaled and capped ones. Where `slopes` is not null it
/// gets the derivatives by the scores as they were.
inline void cap_scores(const AttentionProblem& p, std::size_t begin, std::size_t end, float* s,
                       float* slopes = nullptr) {
  const Floats d;
  const F cap = hn::Set(d, p.soft_cap), factor = hn::Set(d, 2 * p.scale / p.soft_cap);
  const F one = hn::Set(d, 1.0f), scale = hn::Set(d, p.scale);
  for (std::size_t j = begin / hn::Lanes(d) * hn::Lanes(d); j < end; j += hn::Lanes(d)) {
    const F tanh = tanh_of_half(hn::Mul(hn::LoadU(d, s + j), factor));
    hn::StoreU(hn::Mul(tanh, cap), d, s + j);
    if (slopes != nullptr) hn::StoreU(hn::Mul(hn::NegMulAdd(tanh, tanh, one), scale), d, slopes + j);
  }
}

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
