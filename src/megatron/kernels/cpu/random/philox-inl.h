// Philox4x32-10 on vectors (base/philox.h): one block in each 64-bit lane.
#if defined(MEGATRON_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_PHILOX_INL_H_
#undef MEGATRON_KERNELS_CPU_PHILOX_INL_H_
#else
#define MEGATRON_KERNELS_CPU_PHILOX_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Blocks = hn::ScalableTag<std::uint64_t>;
using Words = hn::Repartition<std::uint32_t, Blocks>;

/// Words 0 to 3 of consecutive blocks, each in the lower half of its lane. The upper halves hold rubbish.
struct PhiloxLanes {
  hn::Vec<Blocks> word[4];
};

HWY_INLINE PhiloxLanes philox_lanes(std::uint64_t key, std::uint64_t sample, hn::Vec<Blocks> block) {
  const Blocks d;
  const Words w;
  const auto m0 = hn::Set(w, 0xD2511F53u), m1 = hn::Set(w, 0xCD9E8D57u);
  auto c0 = block, c1 = hn::ShiftRight<32>(block), c2 = hn::Set(d, sample), c3 = hn::Set(d, sample >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto p0 = hn::MulEven(hn::BitCast(w, c0), m0), p1 = hn::MulEven(hn::BitCast(w, c2), m1);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, k0));
    c1 = p1;
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, k1));
    c3 = p0;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

/// The lower halves of `even` and `odd` in the even and odd 32-bit lanes.
HWY_INLINE hn::Vec<Words> interleave_halves(hn::Vec<Blocks> even, hn::Vec<Blocks> odd) {
  const Words w;
  return hn::OddEven(hn::BitCast(w, hn::ShiftLeft<32>(odd)), hn::BitCast(w, even));
}

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
