#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/elementwise/fp8.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include "megatron/kernels/cpu/elementwise/fp8.h"
#include "megatron/kernels/cpu/elementwise/vector_body.h"
#include "megatron/kernels/cpu/products/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

/// |x| as bits, whose order is that of the numbers, with NaN above all.
HWY_INLINE hn::Vec<Ints> magnitude(F x) {
  const Ints d;
  return hn::And(hn::BitCast(d, x), hn::Set(d, 0x7FFFFFFF));
}

/// A format of 8 bits: its exponents and the digits behind the first.
struct Format {
  float most;
  std::int32_t least_exponent, to_meeting;  ///< of a normal number's bits; from a number's to that of which float32's
                                            ///< last digit is the format's
  explicit Format(bool fine)
      : most(fine ? 448.0f : 57344.0f),
        least_exponent((fine ? 121 : 113) << 23),
        to_meeting((23 - (fine ? 3 : 2)) << 23) {}

  /// x to the nearest of its numbers, ties to even; NaN stays NaN.
  HWY_INLINE F nearest(F x) const {
    const Floats d;
    const Ints bits;
    const F size = hn::Abs(within(x, most));
    const auto exponent =
        hn::Max(hn::And(hn::BitCast(bits, size), hn::Set(bits, 0x7F800000)), hn::Set(bits, least_exponent));
    const F meets = hn::BitCast(d, hn::Add(exponent, hn::Set(bits, to_meeting)));
    const F rounded = hn::Sub(hn::Add(size, meets), meets);
    return hn::CopySign(hn::IfThenElse(hn::IsNaN(x), x, rounded), x);
  }
};

template <class T>
HWY_INLINE void store_whole(F v, T* p, std::size_t lanes) {
  store(v, p, lanes);
}
/// By bits: the processor's instruction makes zeros of denormal numbers.
HWY_INLINE void store_whole(F v, c10::BFloat16* p, std::size_t lanes) {
  const hn::RebindToUnsigned<Floats> d;
  const auto bits = hn::BitCast(d, v);
  const auto rounded = hn::Add(bits, hn::Add(hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1)), hn::Set(d, 0x7FFF)));
  const auto nan = hn::RebindMask(d, hn::IsNaN(v));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(nan, hn::Set(d, 0x7FC00000), rounded));
  store_bits(hn::DemoteTo(Halves(), hn::BitCast(Ints(), upper)), p, lanes);
}

template <class T>
std::uint32_t largest(const T* x, std::size_t count) {
  const Ints d;
  auto most = hn::Zero(d);
  for_vectors(count, [&](std::size_t i, std::size_t lanes)
                         VECTOR_BODY { most = hn::Max(most, magnitude(load(x + i, lanes))); });
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(d, most)));
}

template <class T>
void enlarge(std::uint32_t* magnitudes, const T* x, std::size_t count) {
  const Floats d;
  auto* const bits = reinterpret_cast<float*>(magnitudes);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const auto most = hn::Max(hn::BitCast(Ints(), load(bits + i, lanes)), magnitude(load(x + i, lanes)));
    store(hn::BitCast(d, most), bits + i, lanes);
  });
}

template <class T>
void round(const T* x, T* to, std::size_t count, float scale, float inverse, bool fine) {
  const Format format(fine);
  const F by = hn::Set(Floats(), scale), back = hn::Set(Floats(), inverse);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    store_whole(hn::Mul(format.nearest(hn::Mul(load(x + i, lanes), by)), back), to + i, lanes);
  });
}

template <class T>
void round_each(const T* x, T* to, std::size_t count, const float* scales, const float* inverses, bool fine) {
  const Format format(fine);
  for_vectors(count, [=](std::size_t i, std::size_t lanes) VECTOR_BODY {
    const F number = format.nearest(hn::Mul(load(x + i, lanes), load(scales + i, lanes)));
    store_whole(hn::Mul(number, load(inverses + i, lanes)), to + i, lanes);
  });
}

template <class T>
Fp8Kernels<T> kernels_of() {
  return {largest<T>, enlarge<T>, round<T>, round_each<T>};
}
Fp8Kernels<float> of_float() { return kernels_of<float>(); }
Fp8Kernels<c10::BFloat16> of_bf16() { return kernels_of<c10::BFloat16>(); }
Fp8Kernels<c10::Half> of_fp16() { return kernels_of<c10::Half>(); }

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(of_float);
HWY_EXPORT(of_bf16);
HWY_EXPORT(of_fp16);

template <>
Fp8Kernels<float> fp8_kernels() {
  return HWY_DYNAMIC_DISPATCH(of_float)();
}
template <>
Fp8Kernels<c10::BFloat16> fp8_kernels() {
  return HWY_DYNAMIC_DISPATCH(of_bf16)();
}
template <>
Fp8Kernels<c10::Half> fp8_kernels() {
  return HWY_DYNAMIC_DISPATCH(of_fp16)();
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
