// bf16 and fp16 in memory: loads to and stores from vectors of float.
#if defined(MEGATRON_KERNELS_CPU_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_HALF_INL_H_
#undef MEGATRON_KERNELS_CPU_HALF_INL_H_
#else
#define MEGATRON_KERNELS_CPU_HALF_INL_H_
#endif

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>

#include "megatron/kernels/cpu/elementwise/math-inl.h"
#include "megatron/kernels/cpu/elementwise/rounding.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

using Halves = hn::Rebind<std::uint16_t, Floats>;  ///< as many 16-bit lanes as float has
using HalfBits = hn::Vec<Halves>;

/// `lanes` words from p, zeros above.
HWY_INLINE HalfBits load_bits(const void* p, std::size_t lanes) {
  const Halves d;
  if (lanes == hn::Lanes(Floats())) return hn::LoadU(d, static_cast<const std::uint16_t*>(p));
  alignas(64) std::uint16_t words[HWY_MAX_BYTES / 4] = {};
  std::memcpy(words, p, lanes * sizeof(std::uint16_t));
  return hn::Load(d, words);
}
HWY_INLINE void store_bits(HalfBits v, void* p, std::size_t lanes) {
  const Halves d;
  if (lanes == hn::Lanes(Floats())) return hn::StoreU(v, d, static_cast<std::uint16_t*>(p));
  alignas(64) std::uint16_t words[HWY_MAX_BYTES / 4];
  hn::Store(v, d, words);
  std::memcpy(p, words, lanes * sizeof(std::uint16_t));
}

/// `lanes` elements from p, zeros above.
HWY_INLINE F load(const c10::BFloat16* p, std::size_t lanes) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, load_bits(p, lanes))));
}
HWY_INLINE F load(const c10::Half* p, std::size_t lanes) {
  return hn::PromoteTo(Floats(), hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), load_bits(p, lanes)));
}

#if HWY_TARGET <= HWY_AVX3
/// to_bf16() where rounds_by_instruction, which loops ask once; in assembler, since AVX512_BF16 is not what the file is
/// compiled for.
HWY_INLINE HalfBits to_bf16_by_instruction(F v) {
  HalfBits rounded;
  asm("vcvtneps2bf16 %1, %0" : "=v"(rounded.raw) : "v"(v.raw));
  return rounded;
}
#endif

/// The upper halves, rounded to nearest, ties to even; NaN stays NaN.
HWY_INLINE HalfBits to_bf16(F v) {
#if HWY_TARGET <= HWY_AVX3
  if (rounds_by_instruction.load(std::memory_order_relaxed)) return to_bf16_by_instruction(v);
#endif
  const hn::RebindToUnsigned<Floats> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(nan, hn::Or(bits, hn::Set(du, 0x400000)), rounded));
  return hn::DemoteTo(Halves(), hn::BitCast(Ints(), upper));
}

HWY_INLINE void store(F v, c10::BFloat16* p, std::size_t lanes) { store_bits(to_bf16(v), p, lanes); }
HWY_INLINE void store(F v, c10::Half* p, std::size_t lanes) {
  store_bits(hn::BitCast(Halves(), hn::DemoteTo(hn::Rebind<hwy::float16_t, Floats>(), v)), p, lanes);
}

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
