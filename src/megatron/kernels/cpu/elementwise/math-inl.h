// Elementary functions on vectors of float. Relative errors are stated, and tested in tests/kernels.
#if defined(MEGATRON_KERNELS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_MATH_INL_H_
#undef MEGATRON_KERNELS_CPU_MATH_INL_H_
#else
#define MEGATRON_KERNELS_CPU_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Ints = hn::RebindToSigned<Floats>;
using F = hn::Vec<Floats>;
constexpr std::size_t kLanes = HWY_MAX_BYTES >= 64 ? 16 : 8;  // of float, with AVX512 and AVX2

/// e^x to 2e-7, x <= 88 (more is taken for 88); exactly 0 below -87.3, where the result would be denormal. NaN stays
/// NaN.
HWY_INLINE F exp(F x) {
  const Floats d;
  const Ints i;
  const auto vanishes = hn::Lt(x, hn::Set(d, -87.33f));
  x = hn::Min(hn::Set(d, 88.0f), x);  // x where it is NaN
  // x / ln 2 rounds to n in the sum with 1.5 * 2^23, whose last bits are then n's; what overflows there vanishes.
  const F shifter = hn::Set(d, 12582912.0f), shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), shifter);
  const F n = hn::Sub(shifted, shifter);
  F f = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);  // x - n ln 2, in two parts
  f = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), f);
  F p = hn::Set(d, 1.9875691500e-4f);  // Cephes: e^f = 1 + f + f^2 p(f)
  p = hn::MulAdd(p, f, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.0000001201e-1f));
  p = hn::MulAdd(hn::MulAdd(p, f, hn::Set(d, 1.0f)), f, hn::Set(d, 1.0f));
  const F power = hn::BitCast(d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(i, shifted)), hn::Set(i, 0x3f800000)));
  return hn::IfThenZeroElse(vanishes, hn::Mul(p, power));
}

/// erf(x) to an absolute 2e-7 (Abramowitz & Stegun 7.1.26), and e^(-x^2), which it needs anyway.
HWY_INLINE F erf(F x, F& exp_minus_square) {
  const Floats d;
  const F one = hn::Set(d, 1.0f), a = hn::Abs(x);
  const F t = hn::Div(one, hn::MulAdd(a, hn::Set(d, 0.3275911f), one));
  F p = hn::Set(d, 1.061405429f);
  p = hn::MulAdd(p, t, hn::Set(d, -1.453152027f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.421413741f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.284496736f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.254829592f));
  exp_minus_square = exp(hn::Neg(hn::Mul(x, x)));
  return hn::CopySign(hn::NegMulAdd(hn::Mul(p, t), exp_minus_square, one), x);
}

/// Calls fn(offset, lanes) for whole vectors of [0, count), and once more for the rest with fewer lanes.
template <class Fn>
HWY_INLINE void for_vectors(std::size_t count, const Fn& fn) {
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) fn(i, lanes);
  if (i < count) fn(i, count - i);
}

/// `lanes` elements from p, zeros above.
HWY_INLINE F load(const float* p, std::size_t lanes) {
  const Floats d;
  return lanes == hn::Lanes(d) ? hn::LoadU(d, p) : hn::MaskedLoad(hn::FirstN(d, lanes), d, p);
}
HWY_INLINE void store(F v, float* p, std::size_t lanes) {
  const Floats d;
  if (lanes == hn::Lanes(d)) {
    hn::StoreU(v, d, p);
  } else {
    hn::BlendedStore(v, hn::FirstN(d, lanes), d, p);
  }
}

HWY_INLINE float sum_of_lanes(F v) { return hn::GetLane(hn::SumOfLanes(Floats(), v)); }
HWY_INLINE float max_of_lanes(F v) { return hn::GetLane(hn::MaxOfLanes(Floats(), v)); }

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
