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

#if HWY_TARGET <= HWY_AVX3
/// What t has beyond the next whole number below it, in [0, 1]; 0 of infinities.
HWY_INLINE F fraction(F t) { return F{_mm512_reduce_ps(t.raw, 1)}; }
/// p 2^n, n the next whole number below t.
HWY_INLINE F times_power(F p, F t) { return F{_mm512_scalef_ps(p.raw, t.raw)}; }
#endif

/// e^x to 2e-7, x <= 88. Below -87.3, where the result is denormal, it or 0; exactly 0 below -104. NaN stays NaN.
HWY_INLINE F exp_up_to_88(F x) {
  const Floats d;
  x = hn::Max(hn::Set(d, -140.0f), x);  // x where it is NaN
  // x / ln 2 rounds to n in the sum with 1.5 * 2^23, whose last bits are then n's; what that leaves, 1 / ln 2 in two
  // parts, is between -1/2 and 1/2.
  const F shifter = hn::Set(d, 12582912.0f), shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), shifter);
  const F n = hn::Sub(shifted, shifter);
  const F f = hn::MulAdd(x, hn::Set(d, 1.92596303e-8f), hn::MulSub(x, hn::Set(d, 1.44269504f), n));
  F p = hn::Set(d, 1.5594677825e-4f);  // 2^f: minimax, 1 at 0
  p = hn::MulAdd(p, f, hn::Set(d, 1.3406643411e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.6176927909e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.5503103882e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.4022652209e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.9314724207e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
#if HWY_TARGET <= HWY_AVX3
  return times_power(p, n);
#else
  const Ints i;
  const F power = hn::BitCast(d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(i, shifted)), hn::Set(i, 0x3f800000)));
  return hn::IfThenZeroElse(hn::Lt(n, hn::Set(d, -126.0f)), hn::Mul(p, power));
#endif
}

/// e^x of any x, as exp_up_to_88(): more than 88 is taken for 88.
HWY_INLINE F exp(F x) { return exp_up_to_88(hn::Min(hn::Set(Floats(), 88.0f), x)); }

/// 2^t to 3e-7, |t| <= 125; of NaN anything, with AVX512 NaN, and there 0 of minus infinity.
HWY_INLINE F exp2(F t) {
  const Floats d;
#if HWY_TARGET <= HWY_AVX3
  const F f = fraction(t);
  F p = hn::Set(d, 1.877576695e-3f);  // least error relative to 2^f
  p = hn::MulAdd(p, f, hn::Set(d, 8.989339694e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.582631752e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.401536107e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931530833e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.999999404e-1f));
  return times_power(p, t);
#else
  const F shifter = hn::Set(d, 12582912.0f), shifted = hn::Add(t, shifter);  // rounds to n, see exp_up_to_88
  const F f = hn::Sub(t, hn::Sub(shifted, shifter));
  F p = hn::Set(d, 1.32764714e-3f);  // least error relative to 2^f
  p = hn::MulAdd(p, f, hn::Set(d, 9.675541296e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550713275e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402211973e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931469671e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.000000072f));
  const Ints i;
  return hn::BitCast(d, hn::Add(hn::BitCast(i, p), hn::ShiftLeft<23>(hn::BitCast(i, shifted))));
#endif
}

/// e^x as power(kFactor x), x <= 88, which lets a factor of x take kFactor in.
struct Exp {
  static constexpr float kFactor = 1.0f;
  static HWY_INLINE F power(F x) { return exp_up_to_88(x); }
};
/// e^x for what is rounded to 16 bits: to 3e-7 besides the rounding of kFactor x, with two thirds of the operations
/// where the processor takes numbers apart itself. Of a difference of numbers above 1e8 that rounding leaves nothing.
#if HWY_TARGET <= HWY_AVX3
struct ExpTo16Bits {
  static constexpr float kFactor = 1.44269504f;  // 1 / ln 2
  static HWY_INLINE F power(F t) { return exp2(t); }
};
#else
using ExpTo16Bits = Exp;
#endif

/// 1 / x to 3e-7, 2^-125 <= |x| <= 2^125: a division takes as long as ten other operations. Guesses of other processors
/// than x86 are too far off for one step.
HWY_INLINE F reciprocal(F x) {
#if !HWY_ARCH_X86
  return hn::Div(hn::Set(Floats(), 1.0f), x);
#else
  const F guess = hn::ApproximateReciprocal(x);
  return hn::Mul(guess, hn::NegMulAdd(x, guess, hn::Set(Floats(), 2.0f)));
#endif
}

/// x where it lies in [-most, most], else the bound next to it; NaN stays NaN.
HWY_INLINE F within(F x, float most) {
  const Floats d;
  return hn::Max(hn::Set(d, -most), hn::Min(hn::Set(d, most), x));
}

/// erf(x) to an absolute 2e-7 (Abramowitz & Stegun 7.1.26), and e^(-x^2), which it needs anyway.
HWY_INLINE F erf(F x, F& exp_minus_square) {
  const Floats d;
  const F one = hn::Set(d, 1.0f), a = hn::Min(hn::Set(d, 16.0f), hn::Abs(x));  // |x| where it is NaN
  const F t = reciprocal(hn::MulAdd(a, hn::Set(d, 0.3275911f), one));
  F p = hn::Set(d, 1.061405429f);
  p = hn::MulAdd(p, t, hn::Set(d, -1.453152027f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.421413741f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.284496736f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.254829592f));
  exp_minus_square = exp_up_to_88(hn::Neg(hn::Mul(x, x)));
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

/// The sum of fn(offset, lanes), vectors of [0, count); in four parts, which do not wait for each other.
template <class Fn>
HWY_INLINE F sum_of_vectors(std::size_t count, const Fn& fn) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  F sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    sums[0] = hn::Add(sums[0], fn(i, lanes));
    sums[1] = hn::Add(sums[1], fn(i + lanes, lanes));
    sums[2] = hn::Add(sums[2], fn(i + 2 * lanes, lanes));
    sums[3] = hn::Add(sums[3], fn(i + 3 * lanes, lanes));
  }
  for (; i + lanes <= count; i += lanes) sums[0] = hn::Add(sums[0], fn(i, lanes));
  if (i < count) sums[1] = hn::Add(sums[1], fn(i, count - i));
  return hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
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
