#include "megatron/kernels/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <stdexcept>
#include <vector>

#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: each pair of features as a complex number times e^(i position frequency), written out here.
namespace megatron::kernels {
namespace {

/// Turns the features of one head at `position`; inverse: position negative.
std::vector<double> turned(std::vector<double> head, const RopeOptions& options, double position) {
  const auto half = static_cast<std::size_t>(options.rotary_dim / 2);
  for (std::size_t i = 0; i < half; ++i) {
    const std::size_t x = options.interleaved ? 2 * i : i, y = options.interleaved ? 2 * i + 1 : i + half;
    const double frequency =
        std::pow(options.base, -static_cast<double>(2 * i) / static_cast<double>(options.rotary_dim));
    const std::complex<double> z = std::complex<double>(head[x], head[y]) * std::polar(1.0, position * frequency);
    head[x] = z.real();
    head[y] = z.imag();
  }
  return head;
}

/// The whole of heads [s, b, g, r, d] turned, in float64; ids [b, s] or undefined.
at::Tensor all_turned(const at::Tensor& heads, const RopeOptions& options, const at::Tensor& ids, std::int64_t first,
                      double direction) {
  const at::Tensor result = heads.to(at::kDouble).contiguous();
  const std::int64_t d = heads.size(-1), rows = result.numel() / d, inner = heads.size(2) * heads.size(3);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t p = row / inner / heads.size(1), b = row / inner % heads.size(1);
    const std::int64_t position = ids.defined() ? ids[b][p].item<std::int64_t>() : first + p;
    double* at = result.mutable_data_ptr<double>() + row * d;
    const auto head = turned({at, at + d}, options, direction * static_cast<double>(position));
    std::copy(head.begin(), head.end(), at);
  }
  return result;
}

void expect_turns(const RopeOptions& options, std::int64_t d, at::ScalarType dtype, double tolerance) {
  SCOPED_TRACE(testing::Message() << "rotary_dim " << options.rotary_dim << " of " << d << ", interleaved "
                                  << options.interleaved << ", " << c10::toString(dtype));
  const RopeTable table = rope_table(options, 40, dtype, at::kCPU);
  // The queries of a fused projection [s, b, groups, (2 queries, key, value), d].
  const at::Tensor fused = at::randn({5, 2, 3, 4, d}).to(dtype), before = fused.clone();
  const at::Tensor heads = fused.narrow(3, 0, 2);
  const at::Tensor ids = at::randint(40, {2, 5}, at::kLong);
  for (const at::Tensor& position_ids : {at::Tensor(), ids}) {
    const at::Tensor truth = all_turned(heads, options, position_ids, 30, 1);
    rotate_(heads, table, position_ids, 30);
    EXPECT_LT(relative_error(heads, truth), tolerance);
    const at::Tensor back = all_turned(heads, options, position_ids, 30, -1);
    rotate_(heads, table, position_ids, 30, true);
    EXPECT_LT(relative_error(heads, back), tolerance);
    EXPECT_LT(relative_error(heads, wide(before.narrow(3, 0, 2))), 2 * tolerance) << "the inverse does not undo";
    EXPECT_TRUE(heads.narrow(4, options.rotary_dim, d - options.rotary_dim)
                    .equal(before.narrow(3, 0, 2).narrow(4, options.rotary_dim, d - options.rotary_dim)));
  }
  EXPECT_TRUE(fused.narrow(3, 2, 2).equal(before.narrow(3, 2, 2))) << "what is not a query was touched";
}

using RopeTest = OnEveryInstructionSet;

TEST_F(RopeTest, TurnsEachPairByPositionTimesFrequency) {
  on_each([] {
    for (const bool interleaved : {false, true}) {
      for (const auto& [rotary, d] : {std::pair<int, int>{2, 2}, {16, 16}, {64, 64}, {80, 80}, {10, 24}, {32, 64}}) {
        const RopeOptions options{.rotary_dim = rotary, .interleaved = interleaved};
        expect_turns(options, d, at::kDouble, 1e-14);
        expect_turns(options, d, at::kFloat, 2e-7);
        expect_turns(options, d, at::kBFloat16, 4e-3);
        expect_turns(options, d, at::kHalf, 5e-4);
      }
    }
  });
}

TEST_F(RopeTest, TakesHeadsWithoutGroupsAndKeysOfOneGroup) {
  on_each([] {
    const RopeOptions options{.rotary_dim = 16};
    const RopeTable table = rope_table(options, 9, at::kFloat, at::kCPU);
    const at::Tensor x = at::randn({9, 2, 3, 16});
    const at::Tensor truth = all_turned(x.unsqueeze(3), options, {}, 0, 1).squeeze(3);
    rotate_(x, table, {}, 0);
    EXPECT_LT(relative_error(x, truth), 2e-7);
  });
}

TEST(RopeTable, HasTheFrequenciesOfLlama3) {
  // transformers 5 (LlamaRotaryEmbedding): rope_theta 500000, head_dim 32, factor 8, low 1, high 4, original 8192.
  const double frequencies[16] = {1,
                                  0.440366626,
                                  0.193922758,
                                  0.0853971019,
                                  0.0376060307,
                                  0.0165604409,
                                  0.00729266508,
                                  0.00321144611,
                                  0.000524846022,
                                  7.78465546e-05,
                                  3.42810235e-05,
                                  1.50962178e-05,
                                  6.64786967e-06,
                                  2.92749974e-06,
                                  1.28917316e-06,
                                  5.6770881e-07};
  const RopeTable table =
      rope_table({.rotary_dim = 32, .base = 500000, .scaling = {.factor = 8}}, 2, at::kDouble, at::kCPU);
  for (std::int64_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(table.sin[1][i].item<double>() / std::sin(frequencies[i]), 1, 1e-6) << "pair " << i;
    EXPECT_NEAR(table.cos[1][i].item<double>(), std::cos(frequencies[i]), 1e-7) << "pair " << i;
  }
}

TEST(RopeTable, IsExactAtPositionsFarOut) {
  const RopeTable table = rope_table({.rotary_dim = 4}, 100001, at::kFloat, at::kCPU);
  EXPECT_FLOAT_EQ(table.cos[100000][0].item<float>(), static_cast<float>(std::cos(100000.0)));
  EXPECT_FLOAT_EQ(table.sin[100000][1].item<float>(), static_cast<float>(std::sin(1000.0)));
}

TEST(Rope, RefusesPositionsAndFeaturesThatAreNotThere) {
  const RopeTable table = rope_table({.rotary_dim = 8}, 10, at::kFloat, at::kCPU);
  const at::Tensor heads = at::randn({4, 1, 1, 8});
  EXPECT_THROW(rotate_(heads, table, {}, 7), std::logic_error);
  EXPECT_THROW(rotate_(heads, table, {}, -1), std::logic_error);
  EXPECT_THROW(rotate_(heads, table, at::tensor({0, 1, 2, 10}, at::kLong).view({1, 4}), 0), std::logic_error);
  EXPECT_THROW(rotate_(at::randn({4, 1, 1, 6}), table, {}, 0), std::logic_error);
  EXPECT_THROW(rope_table({.rotary_dim = 7}, 10, at::kFloat, at::kCPU), std::logic_error);
}

TEST(LongRope, HasTheFactorsOfTheLengthThatATableIsFor) {
  RopeOptions options{.rotary_dim = 4, .base = 100};
  options.scaling = {.kind = RopeScaling::Kind::LongRope,
                     .factor = 8,
                     .original_positions = 16,
                     .short_factor = {1, 2},
                     .long_factor = {4, 5}};
  const double turned = std::sqrt(1 + std::log(8.0) / std::log(16.0));
  for (const auto& [positions, factors] :
       {std::pair<std::int64_t, std::vector<double>>{16, {1, 2}}, {17, {4, 5}}, {3, {1, 2}}, {64, {4, 5}}}) {
    for (const double given : {0.0, 1.5}) {
      options.scaling.attention_factor = given;
      const RopeTable table = rope_table(options, positions, at::kDouble, at::kCPU);
      const double scale = given > 0 ? given : turned;
      for (const std::int64_t p : {std::int64_t{0}, std::int64_t{2}, positions - 1})
        for (std::int64_t i = 0; i < 2; ++i) {
          const double angle = static_cast<double>(p) * std::pow(100.0, -static_cast<double>(i) / 2) /
                               factors[static_cast<std::size_t>(i)];
          EXPECT_NEAR(table.cos[p][i].item<double>(), scale * std::cos(angle), 1e-14);
          EXPECT_NEAR(table.sin[p][i].item<double>(), scale * std::sin(angle), 1e-14);
        }
    }
  }
}

}  // namespace
}  // namespace megatron::kernels
