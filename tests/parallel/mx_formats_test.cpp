#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/parallel/fp8.h"
#include "tests/parallel/fp8_numbers.h"

// Scales and numbers of MXFP8 against other implementations of them.
namespace megatron::parallel {
namespace {

using kernels::Fp8Blocks;
using plan::Fp8Type;
using testing::fp8_in_blocks;
using testing::fp8_rounded_in_blocks;

/// Bits of float32 exponents as E8M0 has them.
int exponent_of(float number) { return static_cast<int>(std::bit_cast<std::uint32_t>(number) >> 23); }

/// The scale of a block in E8M0 as Transformer Engine 2 computes it (common/util/ptx.cuh, float_to_e8m0() of amax x
/// max_norm_rcp): the quotient in float32, rounded up to a power of two, 2^-127 the smallest.
int scale_of_transformer_engine(float amax, Fp8Type type) {
  const float reciprocal = 1 / static_cast<float>(plan::largest_of(type)), quotient = amax * reciprocal;
  const std::uint32_t mantissa = std::bit_cast<std::uint32_t>(quotient) & 0x7FFFFF;
  const int exponent = exponent_of(quotient);
  if (exponent == 0) return mantissa > 0x400000 ? 1 : 0;
  return exponent + (mantissa > 0 ? 1 : 0);
}

/// The smallest power of two from 2^-126 on by which amax is at most the largest number: exact in long double.
int smallest_scale(float amax, Fp8Type type) {
  int exponent = -126;
  while (std::ldexp(static_cast<long double>(amax), -exponent) > plan::largest_of(type)) ++exponent;
  return exponent + 127;
}

// Every exponent of float32, with mantissas around the one at which the scale changes. What Transformer Engine
// multiplies by 2^-127 is below 3e-36 (of gradients in E5M2 4e-34): here the smallest scale is 2^-126.
TEST(MxScale, IsThatOfTransformerEngine) {
  std::vector<std::uint32_t> mantissas = {0, 1, 2, 0x400000, 0x5FFFFE, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF};
  for (std::uint32_t mantissa = 3; mantissa < 1U << 23; mantissa += 104729) mantissas.push_back(mantissa);
  for (const Fp8Type type : {Fp8Type::E4M3, Fp8Type::E5M2})
    for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
      std::vector<float> magnitudes;
      for (const std::uint32_t mantissa : mantissas)
        magnitudes.push_back(std::bit_cast<float>(exponent << 23 | mantissa));
      const auto count = static_cast<std::int64_t>(magnitudes.size());
      const at::Tensor inverse = fp8_scale_of(at::from_blob(magnitudes.data(), {count}, at::kFloat), type).inverse;
      for (std::int64_t i = 0; i < count; ++i) {
        const float amax = magnitudes[static_cast<std::size_t>(i)], found = inverse.const_data_ptr<float>()[i];
        const int theirs = scale_of_transformer_engine(amax, type);
        ASSERT_EQ(std::ldexp(1.0F, exponent_of(found) - 127), found) << amax;
        ASSERT_EQ(exponent_of(found), std::max(theirs, 1)) << amax;
        ASSERT_EQ(exponent_of(found), smallest_scale(amax, type)) << amax;
        ASSERT_TRUE(theirs > 0 || amax < (type == Fp8Type::E4M3 ? 3e-36F : 4e-34F)) << amax;
      }
    }
}

// Scales and numbers of 12 blocks of 32 as PyTorch 2.11 has them, in torch/testing/_internal/common_quantized.py
// (to_mxfp(), torchao's ScaleCalculationMode.RCEIL).
TEST(MxBlocks, AreThoseOfTorchao) {
  constexpr std::array<int, 12> kExponents = {0, 1, -8, 8, -20, 20, -60, 60, -109, 126, 3, -3};
  constexpr std::array<int, 12> kScales = {119, 120, 111, 127, 99, 139, 59, 179, 10, 245, 132, 128};
  const std::string numbers =
      "f0e8416df6e8715ef769f0e26473f07774eb6c58f1f5f6ecf46d63e7ef7076f2"
      "eb77e65cd978746e7777f3e86cf3c8f26474ebf776f173f7e7f7eaf472e4f366"
      "7176f8f77872dbe66b776fcce3f3757069625af6e26076ea71ee7576e1e1e9f7"
      "6a70dfa273eef8ea6af5edf1f07134676277d3ed786e68dd65f47672f8f260f7"
      "60d5dcdff76c766f4572ea6977ed716362f4f76073f5f777f1ebede070ebf0f5"
      "6c6b54cde7f86df5746a66d26df06ceae76770727872ec73f56af7f6f270ec6b"
      "73e373e568f664ecd3f4f8f475e66539ecbf76f5ee71c9d37074de6bf265f478"
      "e9edf0f5f1e87670f370695aea71e650f0e7656be76e68687171777276ea5df0"
      "f2e0e7675fef76f471f473e4f370ea706be7e77572f66ce174f2eb6d776a734d"
      "73e049f3707274d0e96ff3f86e74f1c96af46cec747865dc7175e9f1f4536e6e"
      "968e17a6232323fe25a19e9f23a8a0242221170920019f179a21a32213a3981f"
      "0294861106181807057693100690961589181788858a0090810a970d1396828e";
  const at::Tensor x = at::empty({12, 32}, at::kFloat);
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    state = state * 1664525 + 1013904223;
    const auto whole = static_cast<float>(static_cast<std::int32_t>(state >> 8) - (1 << 23));
    x.mutable_data_ptr<float>()[i] = std::ldexp(whole, kExponents[static_cast<std::size_t>(i / 32)] - 23);
  }
  x[10][7] = -448.0 * 32;  // the largest number times a power of two, and one that is just above
  x[11][9] = std::nextafter(448.0F, 449.0F);
  const Fp8Blocks blocks = fp8_in_blocks(x, Fp8Type::E4M3, {Fp8Tile::Along::Last, plan::kMxBlock});
  const at::Tensor bytes = blocks.numbers.view(at::kByte), scales = blocks.inverse.to(at::kFloat8_e8m0fnu);
  std::string found;
  for (std::int64_t i = 0; i < bytes.numel(); ++i) {
    const int byte = bytes.const_data_ptr<std::uint8_t>()[i];
    found += {"0123456789abcdef"[byte / 16], "0123456789abcdef"[byte % 16]};
  }
  EXPECT_EQ(found, numbers);
  for (std::size_t i = 0; i < kScales.size(); ++i)
    EXPECT_EQ(scales.view(at::kByte).const_data_ptr<std::uint8_t>()[i], kScales[i]) << i;
}

// No number of a block is cut off, for its scale is that of the largest, and those down to 2^-7 of it have all digits.
TEST(MxBlocks, HoldNumbersOfEveryMagnitude) {
  for (const float amax : {1e-36F, 1e-30F, 3e-5F, 1.0F, 447.0F, 449.0F, 7e9F, 1e38F}) {
    const at::Tensor x = at::empty({1, 32}, at::kFloat);
    for (std::int64_t i = 0; i < 32; ++i) x.mutable_data_ptr<float>()[i] = std::ldexp(amax, -static_cast<int>(i) / 4);
    const at::Tensor rounded =
        fp8_rounded_in_blocks(x, Fp8Type::E4M3, {Fp8Tile::Along::Last, plan::kMxBlock}).sub(x).abs();
    // Half of the last of 3 binary digits, of what is not below the smallest normal number.
    EXPECT_TRUE(rounded.le(x.mul(0x1p-4)).all().item<bool>()) << amax;
  }
}

}  // namespace
}  // namespace megatron::parallel
