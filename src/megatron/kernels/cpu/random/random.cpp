#include "megatron/kernels/cpu/random/random.h"

#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/random/random.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "megatron/base/philox.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/random/normal_constants.h"
#include "megatron/kernels/cpu/random/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr std::size_t kMaxGroup = 4 * HWY_MAX_BYTES / 8;  // elements of one vector of blocks

/// Calls group(block, out) for the vectors of blocks that cover elements [first, first + count), and copies the parts
/// that are wanted: whole groups are written in place.
template <class T, class Group>
HWY_INLINE void cover(std::uint64_t first, std::size_t count, T* out, const Group& group) {
  const Blocks d;
  const std::size_t size = 4 * hn::Lanes(d);
  HWY_ALIGN T buffer[kMaxGroup];
  std::uint64_t block = first / 4;
  std::size_t skip = static_cast<std::size_t>(first % 4);
  while (count > 0) {
    const auto blocks = hn::Add(hn::Set(d, block), hn::Iota(d, std::uint64_t{0}));
    const std::size_t taken = std::min(count, size - skip);
    if (taken == size) {
      group(blocks, out);
    } else {
      group(blocks, buffer);
      std::memcpy(out, buffer + skip, taken * sizeof(T));
    }
    out += taken;
    count -= taken;
    block += size / 4;
    skip = 0;
  }
}

void random_words_run(std::uint64_t key, std::uint64_t sample, std::uint64_t first, std::size_t count,
                      std::uint32_t* out) {
  cover(first, count, out, [=](hn::Vec<Blocks> blocks, std::uint32_t* to) HWY_ATTR {
    const PhiloxLanes c = philox_lanes(key, sample, blocks);
    const Blocks d;
    const auto w01 = hn::BitCast(d, interleave_halves(c.word[0], c.word[1]));
    const auto w23 = hn::BitCast(d, interleave_halves(c.word[2], c.word[3]));
    hn::StoreInterleaved2(w01, w23, d, reinterpret_cast<std::uint64_t*>(to));
  });
}

using Floats = hn::Repartition<float, Blocks>;
using Ints = hn::Repartition<std::int32_t, Blocks>;
using F = hn::Vec<Floats>;

/// ln(u) for 2^-31 <= u <= 1.
HWY_INLINE F log_of(F u) {
  const Floats d;
  const Ints i;
  const auto bits = hn::BitCast(i, u), exponent = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(i, kSqrtHalfBits)));
  const F f = hn::Sub(hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent))), hn::Set(d, 1.0f));
  const F e = hn::ConvertTo(d, exponent), f2 = hn::Mul(f, f);
  F p = hn::Set(d, kLog[0]);
  for (int k = 1; k < 9; ++k) p = hn::MulAdd(p, f, hn::Set(d, kLog[k]));
  F y = hn::MulAdd(e, hn::Set(d, kLn2Low), hn::Mul(hn::Mul(p, f), f2));
  y = hn::MulAdd(hn::Set(d, -0.5f), f2, y);
  return hn::MulAdd(e, hn::Set(d, kLn2High), hn::Add(f, y));
}

HWY_INLINE void box_muller(hn::Vec<Words> radius_words, hn::Vec<Words> angle_words, F std, F& even, F& odd) {
  const Floats d;
  const Ints i;
  const Words w;
  const auto v = hn::BitCast(i, hn::Or(hn::ShiftRight<1>(radius_words), hn::Set(w, 1u)));
  const F u = hn::Mul(hn::ConvertTo(d, v), hn::Set(d, kTwoToMinus31));
  const F radius = hn::Mul(hn::Sqrt(hn::Mul(log_of(u), hn::Set(d, -2.0f))), std);
  const auto quadrant = hn::ShiftRight<30>(hn::Add(angle_words, hn::Set(w, 0x20000000u)));
  const auto rest = hn::BitCast(i, hn::Sub(angle_words, hn::ShiftLeft<30>(quadrant)));
  const F x = hn::Mul(hn::ConvertTo(d, rest), hn::Set(d, kQuarterTurn)), x2 = hn::Mul(x, x);
  const F s = hn::MulAdd(hn::MulAdd(hn::Set(d, kSin[0]), x2, hn::Set(d, kSin[1])), x2, hn::Set(d, kSin[2]));
  const F sine = hn::MulAdd(hn::Mul(s, x2), x, x);
  const F c = hn::MulAdd(hn::MulAdd(hn::Set(d, kCos[0]), x2, hn::Set(d, kCos[1])), x2, hn::Set(d, kCos[2]));
  const F cosine = hn::MulAdd(hn::Mul(c, x2), x2, hn::MulAdd(hn::Set(d, -0.5f), x2, hn::Set(d, 1.0f)));
  const auto swap = hn::RebindMask(d, hn::TestBit(quadrant, hn::Set(w, 1u)));
  const auto even_sign = hn::ShiftLeft<30>(hn::And(hn::Add(quadrant, hn::Set(w, 1u)), hn::Set(w, 2u)));
  const auto odd_sign = hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(w, 2u)));
  even = hn::Mul(radius, hn::Xor(hn::IfThenElse(swap, sine, cosine), hn::BitCast(d, even_sign)));
  odd = hn::Mul(radius, hn::Xor(hn::IfThenElse(swap, cosine, sine), hn::BitCast(d, odd_sign)));
}

void normal_run_vector(std::uint64_t key, float std, std::uint64_t first, std::size_t count, float* out) {
  cover(first, count, out, [=](hn::Vec<Blocks> blocks, float* to) HWY_ATTR {
    const PhiloxLanes c = philox_lanes(key, 0, blocks);
    const Floats d;
    F even, odd;
    box_muller(interleave_halves(c.word[0], c.word[2]), interleave_halves(c.word[1], c.word[3]), hn::Set(d, std), even,
               odd);
    hn::StoreInterleaved2(even, odd, d, to);
  });
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(random_words_run);
HWY_EXPORT(normal_run_vector);

void random_words(std::uint64_t key, std::uint64_t sample, std::uint64_t first, std::size_t count, std::uint32_t* out) {
  if (enabled()) return HWY_DYNAMIC_DISPATCH(random_words_run)(key, sample, first, count, out);
  for (std::size_t i = 0; i < count; ++i) out[i] = random_word(key, sample, first + i);
}

void normal_run(std::uint64_t key, float std, std::uint64_t first, std::size_t count, float* out) {
  if (enabled()) return HWY_DYNAMIC_DISPATCH(normal_run_vector)(key, std, first, count, out);
  normal_run_scalar(key, std, first, count, out);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
