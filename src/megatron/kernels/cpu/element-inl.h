// Vectors of float from and to elements stored in bf16 or fp16: load and store of math-inl.h for these types.
#if defined(MEGATRON_KERNELS_CPU_ELEMENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_ELEMENT_INL_H_
#undef MEGATRON_KERNELS_CPU_ELEMENT_INL_H_
#else
#define MEGATRON_KERNELS_CPU_ELEMENT_INL_H_
#endif

#include <cstring>

#include "megatron/kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

using Halves = hn::Rebind<std::uint16_t, Floats>;  // as many as a vector has floats
using H = hn::Vec<Halves>;
using bf16 = hwy::bfloat16_t;
using fp16 = hwy::float16_t;

HWY_INLINE F widened(H bits, bf16) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}
HWY_INLINE F widened(H bits, fp16) { return hn::PromoteTo(Floats(), hn::BitCast(hn::Rebind<fp16, Floats>(), bits)); }

/// To the nearest, ties to even; NaN stays NaN.
HWY_INLINE H narrowed(F x, bf16) {
  const Ints di;
  const hn::RebindToUnsigned<Floats> du;
  const auto bits = hn::BitCast(du, x), top = hn::ShiftRight<16>(bits);
  const auto tie = hn::And(top, hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(tie, hn::Set(du, 0x7FFFu))));
  const auto quiet = hn::Or(top, hn::Set(du, 0x40u));
  return hn::DemoteTo(Halves(), hn::BitCast(di, hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded)));
}
HWY_INLINE H narrowed(F x, fp16) { return hn::BitCast(Halves(), hn::DemoteTo(hn::Rebind<fp16, Floats>(), x)); }

/// `lanes` elements from p, zeros above. Nothing behind them is read.
template <class Half>
HWY_INLINE F load_half(const Half* p, std::size_t lanes) {
  const Halves d;
  const auto* bits = reinterpret_cast<const std::uint16_t*>(p);
  if (lanes == hn::Lanes(d)) return widened(hn::LoadU(d, bits), Half());
  std::uint16_t some[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(some, bits, lanes * sizeof(std::uint16_t));
  return widened(hn::LoadU(d, some), Half());
}
template <class Half>
HWY_INLINE void store_half(F v, Half* p, std::size_t lanes) {
  const Halves d;
  auto* bits = reinterpret_cast<std::uint16_t*>(p);
  if (lanes == hn::Lanes(d)) return hn::StoreU(narrowed(v, Half()), d, bits);
  std::uint16_t all[HWY_MAX_BYTES / sizeof(float)];
  hn::StoreU(narrowed(v, Half()), d, all);
  std::memcpy(bits, all, lanes * sizeof(std::uint16_t));
}

HWY_INLINE F load(const bf16* p, std::size_t lanes) { return load_half(p, lanes); }
HWY_INLINE F load(const fp16* p, std::size_t lanes) { return load_half(p, lanes); }
HWY_INLINE void store(F v, bf16* p, std::size_t lanes) { store_half(v, p, lanes); }
HWY_INLINE void store(F v, fp16* p, std::size_t lanes) { store_half(v, p, lanes); }

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
