#include "megatron/kernels/random.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "megatron/base/philox.h"
#include "megatron/kernels/dropout.h"
#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: base/philox.h, and the Box-Muller transform of its words in float64.
namespace megatron::kernels {
namespace {

double true_normal(std::uint64_t key, std::uint64_t i) {
  const std::uint64_t pair = i / 2 * 2;
  const double u = std::ldexp(static_cast<double>((random_word(key, 0, pair) >> 1) | 1), -31);
  const double angle = 2 * std::numbers::pi * std::ldexp(static_cast<double>(random_word(key, 0, pair + 1)), -32);
  return std::sqrt(-2 * std::log(u)) * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

at::Tensor normal(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& full, int dim,
                  std::int64_t offset, at::ScalarType dtype = at::kFloat) {
  const at::Tensor out = at::empty(shape, dtype);
  fill_normal_(out, 42, 0.02, full, dim, offset);
  return out;
}

using RandomTest = OnEveryInstructionSet;

TEST_F(RandomTest, NormalNumbersAreTheBoxMullerTransformOfPhilox) {
  on_each([] {
    const at::Tensor z = normal({100'001}, {100'001}, -1, 0);
    for (std::int64_t i = 0; i < z.numel(); i += i < 1000 ? 1 : 997) {
      ASSERT_NEAR(z[i].item<double>(), 0.02 * true_normal(42, static_cast<std::uint64_t>(i)), 0.02 * 1e-6)
          << "element " << i;
    }
    EXPECT_NEAR(wide(z).mean().item<double>(), 0, 0.02 * 4 / std::sqrt(1e5));
    EXPECT_NEAR(wide(z).std().item<double>(), 0.02, 0.02 * 4 / std::sqrt(2e5));
  });
}

TEST(Random, EveryInstructionSetGivesTheSameBits) {
  force_instruction_set("reference");
  const at::Tensor truth = normal({20'003}, {20'003}, -1, 0);
  for (const std::string& name : vector_instruction_sets()) {
    force_instruction_set(name);
    EXPECT_TRUE(normal({20'003}, {20'003}, -1, 0).equal(truth)) << name;
  }
  force_instruction_set("auto");
}

TEST_F(RandomTest, ASliceHoldsTheBitsOfTheWhole) {
  on_each([] {
    const at::Tensor whole = normal({6, 10, 7}, {6, 10, 7}, -1, 0);
    EXPECT_TRUE(normal({2, 10, 7}, {6, 10, 7}, 0, 3).equal(whole.narrow(0, 3, 2)));
    EXPECT_TRUE(normal({6, 3, 7}, {6, 10, 7}, 1, 5).equal(whole.narrow(1, 5, 3)));
    EXPECT_TRUE(normal({6, 10, 2}, {6, 10, 7}, 2, 1).equal(whole.narrow(2, 1, 2)));
    EXPECT_TRUE(normal({6, 10, 7}, {6, 10, 7}, -1, 0, at::kDouble).equal(wide(whole)));
  });
}

TEST_F(RandomTest, WeightsOfHalvesAreTheRoundedFloat32Weights) {
  on_each_and_the_reference([] {
    const at::Tensor whole = normal({6, 30'000}, {6, 30'000}, -1, 0);
    for (const at::ScalarType dtype : kHalves) {
      EXPECT_TRUE(normal({6, 30'000}, {6, 30'000}, -1, 0, dtype).equal(whole.to(dtype))) << dtype;
      EXPECT_TRUE(normal({6, 77}, {6, 30'000}, 1, 13, dtype).equal(whole.narrow(1, 13, 77).to(dtype))) << dtype;
    }
  });
}

TEST_F(RandomTest, DropoutMasksAreThoseOfTheScalarGenerator) {
  on_each([] {
    const Dropout dropout{.p = 0.4,
                          .key = 0xFEDCBA9876543210,
                          .sample_ids = at::tensor(std::vector<std::int64_t>{7, std::int64_t{3} << 33}),
                          .position_offset = 2,
                          .features = 100,
                          .feature_offset = 33};
    const at::Tensor mask = dropout_mask(dropout, 3, 2, 37, at::kFloat, at::kCPU);
    for (std::int64_t p = 0; p < 3; ++p) {
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t j = 0; j < 37; ++j) {
          const auto sample = static_cast<std::uint64_t>(dropout.sample_ids[b].item<std::int64_t>());
          const std::uint32_t word =
              random_word(dropout.key, sample, static_cast<std::uint64_t>((2 + p) * 100 + 33 + j));
          ASSERT_EQ(mask[p][b][j].item<float>(), word < dropout_threshold(0.4) ? 0.0f : static_cast<float>(1 / 0.6));
        }
      }
    }
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      EXPECT_TRUE(dropout_mask(dropout, 5, 2, 61, dtype, at::kCPU)
                      .equal(reference::dropout_mask(dropout, 5, 2, 61, dtype, at::kCPU)));
      EXPECT_TRUE(attention_dropout_mask(dropout, 2, 3, 4, 5, 29, dtype, at::kCPU)
                      .equal(reference::attention_dropout_mask(dropout, 2, 3, 4, 5, 29, dtype, at::kCPU)));
    }
  });
}

TEST(JitterFactors, AreMadeOfTheWordOfEachElement) {
  const Dropout site{.key = 0xFEDCBA9876543210,
                     .sample_ids = at::tensor(std::vector<std::int64_t>{7, std::int64_t{3} << 33}),
                     .position_offset = 2,
                     .jump_at = 3,
                     .jump = 40};
  const at::Tensor factors = jitter_factors(site, 0.25, 5, 2, 37, at::kDouble, at::kCPU);
  for (std::int64_t p = 0; p < 5; ++p)
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t j = 0; j < 37; ++j) {
        const auto sample = static_cast<std::uint64_t>(site.sample_ids[b].item<std::int64_t>());
        const auto index = static_cast<std::uint64_t>((2 + p + (p >= 3 ? 40 : 0)) * 37 + j);
        const std::uint32_t high = random_word(site.key, sample, index) / 256;
        const double share = (high + 0.5) / (1 << 24);
        ASSERT_DOUBLE_EQ(factors[p][b][j].item<double>(), 0.75 + 0.5 * share);
      }
  const at::Tensor many = jitter_factors(site, 0.25, 1000, 2, 100, at::kDouble, at::kCPU);
  EXPECT_GT(many.min().item<double>(), 0.75);
  EXPECT_LT(many.max().item<double>(), 1.25);
  // Of a uniform distribution: mean 1 and variance 0.25^2 / 3, to five deviations of 200,000 numbers.
  EXPECT_NEAR(many.mean().item<double>(), 1, 5 * 0.25 / std::sqrt(3 * 2e5));
  EXPECT_NEAR(many.sub(1).square().mean().item<double>(), 0.0625 / 3, 5 * 0.0625 * std::sqrt(4.0 / 45 / 2e5));
}

TEST_F(RandomTest, DropoutMasksOfPiecesArePiecesOfTheWholeMask) {
  on_each_and_the_reference([] {
    Dropout dropout{.p = 0.4, .key = 9, .sample_ids = at::tensor(std::vector<std::int64_t>{7, 8})};
    const at::Tensor rows = dropout_mask(dropout, 24, 2, 5, at::kFloat, at::kCPU);
    const at::Tensor square = attention_dropout_mask(dropout, 2, 3, 4, 24, 24, at::kDouble, at::kCPU);
    Dropout stream = dropout;  // positions 4 … 7 and 16 … 19
    stream.position_offset = 4;
    stream.jump_at = 4;
    stream.jump = 8;
    EXPECT_TRUE(dropout_mask(stream, 8, 2, 5, at::kFloat, at::kCPU)
                    .equal(at::cat({rows.narrow(0, 4, 4), rows.narrow(0, 16, 4)})));
    Dropout part = dropout;
    part.positions = part.features = 24;
    part.position_offset = 16;
    part.feature_offset = 6;
    EXPECT_TRUE(attention_dropout_mask(part, 2, 2, 5, 4, 11, at::kDouble, at::kCPU)
                    .equal(square.narrow(1, 1, 2).narrow(2, 16, 4).narrow(3, 6, 11)));
  });
}

TEST(Reference, DrawsTheWordsOfTheScalarGeneratorByEitherWay) {
  const at::Tensor samples = at::tensor(std::vector<std::int64_t>{0, 7, std::int64_t{3} << 33}).view({3, 1, 1});
  const at::Tensor indices =
      at::tensor(std::vector<std::int64_t>{0, 1, 5, 4, 4, 6, 1'000'003, std::int64_t{1} << 40}).view({1, 2, 4});
  const at::Tensor words = reference::random_words(0xFEDCBA9876543210, samples, indices);
  ASSERT_EQ(words.sizes(), at::IntArrayRef({3, 2, 4}));
  for (std::int64_t n = 0; n < words.numel(); ++n)
    EXPECT_EQ(words.flatten()[n].item<std::int64_t>(),
              std::int64_t{random_word(0xFEDCBA9876543210,
                                       static_cast<std::uint64_t>(samples.flatten()[n / 8].item<std::int64_t>()),
                                       static_cast<std::uint64_t>(indices.flatten()[n % 8].item<std::int64_t>()))});
  EXPECT_TRUE(reference::random_words_by_operators(0xFEDCBA9876543210, samples, indices).equal(words));
}

TEST(Dropout, DropsTheFractionAskedFor) {
  for (const double p : {0.0, 0.1, 0.5, 1.0}) {
    const Dropout dropout{.p = p, .key = 5, .sample_ids = at::tensor(std::vector<std::int64_t>{0})};
    const at::Tensor mask = dropout_mask(dropout, 100, 1, 1000, at::kDouble, at::kCPU);
    EXPECT_NEAR(mask.eq(0).to(at::kDouble).mean().item<double>(), p, 4 * std::sqrt(0.25 / 1e5)) << p;
  }
}

}  // namespace
}  // namespace megatron::kernels
