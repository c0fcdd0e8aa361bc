// A square block of as many rows as a vector has lanes, transposed in registers.
#if defined(MEGATRON_KERNELS_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_TRANSPOSE_INL_H_
#undef MEGATRON_KERNELS_CPU_TRANSPOSE_INL_H_
#else
#define MEGATRON_KERNELS_CPU_TRANSPOSE_INL_H_
#endif

#include "megatron/kernels/cpu/elementwise/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

/// rows[i] and rows[i + kDistance] exchange what lies off the diagonal of their 2 x 2 parts of kDistance lanes each.
template <std::size_t kDistance, class V>
HWY_INLINE void exchange(V& first, V& second) {
  const hn::DFromV<V> d;
  const V a = first, b = second;
  if constexpr (kDistance == 1) {  // within pairs of lanes
    first = hn::OddEven(hn::DupEven(b), a);
    second = hn::OddEven(b, hn::DupOdd(a));
  } else if constexpr (kDistance == 2) {
    const hn::RepartitionToWide<decltype(d)> wide;
    const auto a2 = hn::BitCast(wide, a), b2 = hn::BitCast(wide, b);
    first = hn::BitCast(d, hn::InterleaveLower(wide, a2, b2));
    second = hn::BitCast(d, hn::InterleaveUpper(wide, a2, b2));
  } else if constexpr (kDistance * 2 == kLanes) {
    first = hn::ConcatLowerLower(d, b, a);
    second = hn::ConcatUpperUpper(d, b, a);
  } else {
    first = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
    second = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
  }
}

template <std::size_t kDistance, class V>
HWY_INLINE void exchange_all(V* rows) {
  for (std::size_t i = 0; i < kLanes; ++i)
    if ((i & kDistance) == 0) exchange<kDistance>(rows[i], rows[i + kDistance]);
}

/// rows[i] lane j becomes rows[j] lane i. Lanes of 32 bits.
template <class V>
HWY_INLINE void transpose(V (&rows)[kLanes]) {
  exchange_all<1>(rows);
  exchange_all<2>(rows);
  exchange_all<4>(rows);
  if constexpr (kLanes == 16) exchange_all<8>(rows);
}

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
