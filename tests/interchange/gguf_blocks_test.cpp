// The reader is that of tests/interop/test_gguf.py, which compares it with the package gguf.
#include "megatron/interchange/gguf_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

namespace megatron::interchange {
namespace {

using Numbers = std::array<float, 256>;

Numbers as_read(const Numbers& x) {
  bool finite = true;
  const auto block = q4_k_block(x, finite);
  EXPECT_TRUE(finite);
  Numbers back;
  read_blocks(block.data(), GgufType::Q4_K, 0, 256, back.data());
  return back;
}

TEST(BlockOf256, KeepsWhatItCanHold) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    Numbers x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t number = i / 32, drawn = i % 32 == 0 ? 0 : i % 32 == 1 ? 15 : random() % 16;
      const auto piece = static_cast<float>(number), level = static_cast<float>(drawn);
      x[i] = 0.25F * (63 - 7 * piece) * level - 0.5F * (63 - 9 * piece);  // scales and least values in 6 bits
    }
    const Numbers back = as_read(x);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(back[i], x[i], 1e-3F * 236) << i;
  }
}

TEST(BlockOf256, LosesLessThanEvenStepsBetweenTheEndsWould) {
  std::mt19937 random(2);
  double lost = 0, even = 0;
  for (int round = 0; round < 200; ++round) {
    std::normal_distribution<float> normal(round % 2 == 0 ? 0 : 0.03F, 0.02F);
    Numbers x;
    for (float& value : x) value = normal(random);
    const Numbers back = as_read(x);
    for (std::size_t begin = 0; begin < x.size(); begin += 32) {
      const auto [low, high] = std::minmax_element(x.begin() + static_cast<std::ptrdiff_t>(begin),
                                                   x.begin() + static_cast<std::ptrdiff_t>(begin) + 32);
      const float step = (*high - *low) / 15;
      for (std::size_t i = begin; i < begin + 32; ++i) {
        lost += std::pow(back[i] - x[i], 2);
        even += std::pow(*low + step * std::round((x[i] - *low) / step) - x[i], 2);
      }
    }
  }
  EXPECT_LT(lost, even);  // though scales and least values have 6 bits, and least values are not above 0
}

TEST(BlockOf256, HoldsZerosEqualNumbersAndOneSign) {
  for (const float value : {0.0F, -3.0F, 2.0F, 1e-30F}) {
    Numbers x;
    x.fill(value);
    for (const float back : as_read(x)) EXPECT_NEAR(back, value, std::fabs(value) * 1e-2F + 1e-7F) << value;
  }
  Numbers x = {};
  x[40] = 1;
  EXPECT_NEAR(as_read(x)[40], 1, 1e-3);
  EXPECT_EQ(as_read(x)[41], 0);
  EXPECT_EQ(as_read(x)[200], 0);
}

TEST(BlockOf256, SaysWhatItCannotHold) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::nanf(""), 1e30F}) {
    Numbers x = {};
    x[7] = value;
    bool finite = true;
    q4_k_block(x, finite);
    EXPECT_FALSE(finite) << value;
  }
}

}  // namespace
}  // namespace megatron::interchange
