#include <bit>
#include <cmath>

#include "megatron/base/philox.h"
#include "megatron/kernels/cpu/random/normal_constants.h"
#include "megatron/kernels/cpu/random/random.h"

namespace megatron::kernels::cpu {
namespace {

/// ln(u) for 2^-31 <= u <= 1.
float log_of(float u) {
  const std::int32_t bits = std::bit_cast<std::int32_t>(u), exponent = (bits - kSqrtHalfBits) >> 23;
  const float f = std::bit_cast<float>(bits - (exponent << 23)) - 1.0f, e = static_cast<float>(exponent);
  const float f2 = f * f;
  float p = kLog[0];
  for (int i = 1; i < 9; ++i) p = std::fma(p, f, kLog[i]);
  float y = std::fma(e, kLn2Low, (p * f) * f2);
  y = std::fma(-0.5f, f2, y);
  return std::fma(e, kLn2High, f + y);
}

struct Pair {
  float even, odd;
};

Pair box_muller(std::uint32_t radius_word, std::uint32_t angle_word, float std) {
  const float u = static_cast<float>(static_cast<std::int32_t>((radius_word >> 1) | 1)) * kTwoToMinus31;
  const float radius = std::sqrt(log_of(u) * -2.0f) * std;
  const std::uint32_t quadrant = (angle_word + 0x20000000u) >> 30;
  const float x = static_cast<float>(static_cast<std::int32_t>(angle_word - (quadrant << 30))) * kQuarterTurn,
              x2 = x * x;
  const float sine = std::fma(std::fma(std::fma(kSin[0], x2, kSin[1]), x2, kSin[2]) * x2, x, x);
  const float c = std::fma(std::fma(kCos[0], x2, kCos[1]), x2, kCos[2]);
  const float cosine = std::fma(c * x2, x2, std::fma(-0.5f, x2, 1.0f));
  const float a = (quadrant & 1) != 0 ? sine : cosine, b = (quadrant & 1) != 0 ? cosine : sine;
  return {radius * (((quadrant + 1) & 2) != 0 ? -a : a), radius * ((quadrant & 2) != 0 ? -b : b)};
}

}  // namespace

void normal_run_scalar(std::uint64_t key, float std, std::uint64_t first, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t element = first + i;
    const PhiloxWords words = philox(key, element / 4, 0);
    const std::size_t pair = element % 4 / 2 * 2;
    const Pair z = box_muller(words[pair], words[pair + 1], std);
    out[i] = element % 2 == 0 ? z.even : z.odd;
  }
}

}  // namespace megatron::kernels::cpu
