#include "megatron/kernels/matmul.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "megatron/kernels/embedding.h"
#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

namespace megatron::kernels {
namespace {

TEST(Linear, IsTheProductWithTheTransposedWeight) {
  const at::Tensor x = at::randn({5, 2, 7}, at::kDouble), w = at::randn({3, 7}, at::kDouble),
                   dy = at::randn({5, 2, 3}, at::kDouble);
  EXPECT_LT(relative_error(kernels::linear(x, w), at::matmul(x, w.t())), 1e-14);
  EXPECT_LT(relative_error(linear_input_gradient(dy, w), at::matmul(dy, w)), 1e-14);
  EXPECT_EQ(kernels::linear(x, w).sizes(), (at::IntArrayRef{5, 2, 3}));
}

TEST(Linear, WritesOrAddsTheWeightGradientIntoItsBuffer) {
  const at::Tensor x = at::randn({5, 2, 7}, at::kDouble), dy = at::randn({5, 2, 3}, at::kDouble);
  const at::Tensor truth = at::matmul(dy.reshape({10, 3}).t(), x.reshape({10, 7}));
  const at::Tensor buffer = at::zeros({40}, at::kDouble).fill_(9);
  const at::Tensor grad = buffer.narrow(0, 5, 21).view({3, 7});
  linear_weight_gradient(grad, dy, x, 0.0);
  EXPECT_LT(relative_error(grad, truth), 1e-14);
  linear_weight_gradient(grad, dy, x, 1.0);
  EXPECT_LT(relative_error(grad, 2 * truth), 1e-14);
  EXPECT_TRUE(buffer.narrow(0, 0, 5).eq(9).all().item<bool>() && buffer.narrow(0, 26, 14).eq(9).all().item<bool>());
}

using EmbeddingTest = OnEveryInstructionSet;

TEST_F(EmbeddingTest, PicksAndAccumulatesTheRowsOfThisRankAlone) {
  on_each([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor tokens = at::tensor(std::vector<std::int64_t>{3, 9, 4, 4, 12, 3}).view({3, 2});
      const at::Tensor weight = at::randn({5, 19}).to(dtype), dy = at::randn({3, 2, 19}).to(dtype);  // tokens 4 to 8
      const at::Tensor out = kernels::embedding(tokens, weight, 4);
      EXPECT_TRUE(out[1][0].equal(weight[0]) && out[1][1].equal(weight[0]));
      EXPECT_TRUE(out[0].eq(0).all().item<bool>() && out[2].eq(0).all().item<bool>());
      const at::Tensor grad = at::randn({5, 19}).to(dtype), before = grad.clone();
      embedding_backward(grad, tokens, dy, 4);
      EXPECT_TRUE(grad[0].equal(before[0] + dy[1][0] + dy[1][1]));
      EXPECT_TRUE(grad.narrow(0, 1, 4).equal(before.narrow(0, 1, 4)));
    }
  });
}

}  // namespace
}  // namespace megatron::kernels
