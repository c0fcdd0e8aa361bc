#include "megatron/kernels/embedding.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: the rows of the table, and sums over tokens one by one in float64.
namespace megatron::kernels {
namespace {

constexpr std::int64_t kBegin = 10, kRows = 15;  // tokens 10 … 24 of 40

using EmbeddingTest = OnEveryInstructionSet;

std::int64_t row_of(const at::Tensor& tokens, std::int64_t i, std::int64_t j) {
  return tokens[i][j].item<std::int64_t>() - kBegin;
}
bool is_here(std::int64_t row) { return row >= 0 && row < kRows; }

TEST_F(EmbeddingTest, GivesTheRowsOfItsTokensAndZerosForOthers) {
  on_each_and_the_reference([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const at::Tensor tokens = at::randint(0, 40, {70, 2}, at::kLong), weight = at::randn({kRows, 7}).to(dtype);
      const at::Tensor out = kernels::embedding(tokens, weight, kBegin);
      ASSERT_EQ(out.scalar_type(), dtype);
      for (std::int64_t i = 0; i < 70; ++i) {
        for (std::int64_t j = 0; j < 2; ++j) {
          const std::int64_t row = row_of(tokens, i, j);
          EXPECT_TRUE(is_here(row) ? out[i][j].equal(weight[row]) : out[i][j].eq(0).all().item<bool>());
        }
      }
    }
  });
}

TEST_F(EmbeddingTest, AddsGradientsOfEveryPrecisionToFloat32Buffers) {
  on_each_and_the_reference([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const std::int64_t features : {1, 16, 37}) {
        const at::Tensor tokens = at::randint(0, 40, {70, 2}, at::kLong), dy = at::randn({70, 2, features}).to(dtype);
        const at::Tensor grad = at::randn({kRows, features}), truth = wide(grad).clone();
        for (std::int64_t i = 0; i < 70; ++i) {
          for (std::int64_t j = 0; j < 2; ++j) {
            if (is_here(row_of(tokens, i, j))) truth[row_of(tokens, i, j)] += wide(dy[i][j]);
          }
        }
        embedding_backward(grad, tokens, dy, kBegin);
        EXPECT_LT(relative_error(grad, truth), 1e-6) << dtype << ' ' << features;
      }
    }
  });
}

TEST_F(EmbeddingTest, SumsAFrequentTokenInFloat32EvenForBf16Buffers) {
  on_each_and_the_reference([] {
    const at::Tensor tokens = at::full({1000, 1}, kBegin, at::kLong);
    const at::Tensor grad = at::zeros({kRows, 5}, at::kBFloat16), dy = at::full({1000, 1, 5}, 1.0, at::kBFloat16);
    embedding_backward(grad, tokens, dy, kBegin);  // one by one it would stop at 256
    EXPECT_TRUE(grad[0].eq(1000).all().item<bool>());
    EXPECT_TRUE(grad[1].eq(0).all().item<bool>());
  });
}

}  // namespace
}  // namespace megatron::kernels
