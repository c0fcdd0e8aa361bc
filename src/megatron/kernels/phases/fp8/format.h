#pragma once
#include "megatron/kernels/phases/numbers.h"

// Numbers of 8 bits and their scales, as the reference computes them (kernels/fp8/fp8.h), to the bit.
namespace megatron::kernels::phases {

/// E4M3 where kFine, else E5M2.
template <bool kFine>
struct Fp8Format {
  static constexpr int kMantissa = kFine ? 3 : 2, kBias = kFine ? 7 : 15, kShift = 23 - kMantissa;
  static constexpr float kMost = kFine ? 448.0f : 57344.0f;
  static constexpr std::uint32_t kInfinity = 0x7F800000u, kOneBits = 127u << 23;
  static constexpr float kLeast = kFine ? 0x1p-9f : 0x1p-16f;  ///< in steps of which numbers around 0 are

  /// x, |x| <= kMost or NaN, to the nearest, ties to even.
  static MEGATRON_BOTH std::uint32_t nearest(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    std::uint16_t both = 0;
    if constexpr (kFine)
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
    else
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
    return both & 0xFFu;
#else
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = bits >> 24 & 0x80u, size = bits & 0x7FFFFFFFu;
    if (size > kInfinity) return sign | 0x7Fu;
    if (size < (128u - kBias) << 23) {  // below the least normal number: rounded where it meets the steps
      constexpr float kMeets = kLeast * 0x1p23f;
      return sign |
             (std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + kMeets) - std::bit_cast<std::uint32_t>(kMeets));
    }
    const std::uint32_t rounded = size + ((1u << (kShift - 1)) - 1) + (size >> kShift & 1u);
    return sign | (rounded - ((127u - kBias) << 23)) >> kShift;
#endif
  }
  /// What such a byte stands for: a finite number or NaN.
  static MEGATRON_BOTH float value(std::uint32_t byte) {
    const std::uint32_t sign = (byte & 0x80u) << 24, size = byte & 0x7Fu;
    std::uint32_t bits = (size << kShift) + ((127u - kBias) << 23);
    if (size == 0x7Fu) bits = 0x7FC00000u;
    if (size >> kMantissa == 0) bits = std::bit_cast<std::uint32_t>(static_cast<float>(size) * kLeast);
    return std::bit_cast<float>(sign | bits);
  }
  /// The byte of scale * x, which is cut off at kMost.
  template <class C>
  static MEGATRON_BOTH std::uint32_t quantized(C x, float scale) {
    const C scaled = x * static_cast<C>(scale), most = static_cast<C>(kMost);
    return nearest(static_cast<float>(scaled < -most ? -most : scaled > most ? most : scaled));
  }
};

/// |x| as the bits of a float32, which are in the order of the numbers; one NaN, above all.
template <class C>
MEGATRON_BOTH std::uint32_t magnitude_of(C x) {
  const std::uint32_t size = std::bit_cast<std::uint32_t>(static_cast<float>(x)) & 0x7FFFFFFFu;
  return size > 0x7F800000u ? 0x7FC00000u : size;
}
MEGATRON_BOTH std::uint32_t larger(std::uint32_t one, std::uint32_t other) { return one < other ? other : one; }

/// The scale of numbers whose largest magnitude has these bits (kernels::fp8_scale_of()), and what it divides by.
struct PowerOfTwo {
  float scale, inverse;
};
MEGATRON_BOTH PowerOfTwo scale_for(std::uint32_t amax, bool fine) {
  constexpr int kBias = 127, kMost = 126;
  const int above = static_cast<int>(amax + ((1u << 21) - 1)) >> 23;
  int exponent = 2 * kBias + (fine ? 8 : 15) - above;
  exponent = exponent < kBias - kMost ? kBias - kMost : exponent > kBias + kMost ? kBias + kMost : exponent;
  return {std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23),
          std::bit_cast<float>(static_cast<std::uint32_t>(2 * kBias - exponent) << 23)};
}

/// scale_for() of a block of numbers: the inverse is NaN where one of them is not finite, so that products of the block
/// are NaN.
MEGATRON_BOTH PowerOfTwo scale_of_block(std::uint32_t amax, bool fine) {
  PowerOfTwo found = scale_for(amax, fine);
  if (amax >= 0x7F800000u) found.inverse = std::bit_cast<float>(0x7FC00000u);
  return found;
}

/// Where what blocks are multiplied by goes, of operand rows `outer` and of `block` of the numbers in one: as a matrix
/// of float32, or as E8M0 in tiles of 128 rows and 4 blocks (kernels::Fp8Matrix).
struct Fp8Inverses {
  void* data = nullptr;  ///< null: not wanted
  std::int64_t outer_stride = 0, block_stride = 0;
  std::int64_t tiles = 0;  ///< of E8M0, side by side; 0: float32

  MEGATRON_BOTH void write(std::int64_t outer, std::int64_t block, float inverse) const {
    if (data == nullptr) return;
    if (tiles == 0) {
      static_cast<float*>(data)[outer * outer_stride + block * block_stride] = inverse;
      return;
    }
    const std::int64_t row = outer % 128, place = (outer / 128 * tiles + block / 4) * 512;
    static_cast<std::uint8_t*>(data)[place + row % 32 * 16 + row / 32 * 4 + block % 4] =
        inverse != inverse ? std::uint8_t{0xFF}
                           : static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(inverse) >> 23);
  }
};

/// Who shares a scale: all of x, whose scale is there before; kRows numbers of the last dimension or, in turned copies,
/// of the first one; or kRows x 128.
enum class Fp8Sharing : std::uint8_t { All, Line, Square };

}  // namespace megatron::kernels::phases
