#include "megatron/kernels/profile.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <thread>

namespace megatron::kernels {
namespace {

TEST(OperatorProfile, CountsCallsFlopsAndBytesByOperatorAndShape) {
  const auto x = at::ones({3, 5, 8}), w = at::ones({6, 8}), other = at::ones({4, 8});
  const OperatorProfile profile;
  kernels::linear(x, w);
  kernels::linear(x, w);
  kernels::linear(x, other);
  linear_input_gradient(at::ones({15, 6}), w);
  linear_weight_gradient(w, at::ones({15, 6}), at::ones({15, 8}), 1.0);
  ASSERT_EQ(profile.uses().size(), 4U);
  const OperatorUse& products = profile.uses().at("linear 6 x 8");
  EXPECT_EQ(products.calls, 2);
  EXPECT_EQ(products.flops, 2 * 2 * 15 * 6 * 8);
  EXPECT_EQ(products.bytes, 2 * 4 * (15 * 8 + 6 * 8 + 15 * 6));
  EXPECT_GT(products.seconds, 0);
  EXPECT_EQ(profile.uses().at("linear 4 x 8").calls, 1);
  EXPECT_EQ(profile.uses().at("linear_input_gradient 6 x 8").flops, 2 * 15 * 6 * 8);
  EXPECT_EQ(profile.uses().at("linear_weight_gradient 6 x 8").flops, 2 * 15 * 6 * 8);
  EXPECT_EQ(profile.uses().at("linear_weight_gradient 6 x 8").bytes, 4 * (15 * 8 + 15 * 6 + 2 * 6 * 8));
}

TEST(OperatorProfile, CountsOfCausalAttentionTheScoresThatAreSeen) {
  const auto q = at::ones({4, 2, 3, 8}), k = at::ones({6, 2, 3, 8});
  const OperatorProfile profile;
  attention(q, k, k, {.causal = true});  // of 6 keys the queries see 3, 4, 5 and 6
  EXPECT_EQ(profile.uses().at("attention").flops, 2.0 * 2 * (3 + 4 + 5 + 6) * 2 * 3 * 8);
  attention(q, k, k, {.causal = false});
  EXPECT_EQ(profile.uses().at("attention").flops, 2.0 * 2 * (18 + 24) * 2 * 3 * 8);
}

TEST(OperatorProfile, CountsOfWindowsAndDocumentsTheScoresThatAreSeen) {
  const auto q = at::ones({4, 2, 3, 8});
  AttentionOptions window{.ahead = 1};  // of an encoder: each token sees itself and one to either side
  window.first_key = at::tensor({0, 0, 1, 2}, at::kInt).repeat({2, 1});
  AttentionOptions documents;  // the second sample has two of two tokens
  documents.first_key = at::tensor({0, 0, 0, 0, 0, 0, 2, 2}, at::kInt).view({2, 4});
  const OperatorProfile profile;
  attention(q, q, q, window);
  EXPECT_EQ(profile.uses().at("attention").flops, 2.0 * 2 * (2 + 3 + 3 + 2) * 2 * 3 * 8);
  attention(q, q, q, documents);
  EXPECT_EQ(profile.uses().at("attention").flops, 2.0 * 2 * ((2 + 3 + 3 + 2) * 2 + 10 + 6) * 3 * 8);
  AttentionOptions behind{.causal = false};  // as of a ring's part that comes before all windows
  behind.first_key = at::full({2, 4}, 6, at::kInt);
  attention(q, q, q, behind);
  EXPECT_EQ(profile.uses().at("attention").flops, 2.0 * 2 * ((2 + 3 + 3 + 2) * 2 + 10 + 6) * 3 * 8);
}

TEST(OperatorProfile, IsOfItsThreadWhileItLives) {
  const auto x = at::ones({4, 8}), w = at::ones({6, 8});
  {
    const OperatorProfile profile;
    std::thread([&] { kernels::linear(x, w); }).join();
    EXPECT_TRUE(profile.uses().empty());
  }
  kernels::linear(x, w);
  const OperatorProfile profile;
  EXPECT_TRUE(profile.uses().empty());
  EXPECT_EQ(sum_of_squares(x).item<double>(), 32);
  EXPECT_EQ(profile.uses().at("sum_of_squares").bytes, 4 * 32 + 8);
}

TEST(OperatorProfile, CountsWhatIsReadAndWrittenTwiceAndAnEmbeddingByItsRows) {
  const auto param = at::ones({100}), grad = at::ones({100}), m = at::zeros({100}), v = at::zeros({100});
  const auto table = at::ones({1000, 8});
  const OperatorProfile profile;
  adam_(param, {}, grad, m, v, {}, {});
  EXPECT_EQ(profile.uses().at("adam_").bytes, 4 * 100 * (2 + 1 + 2 + 2));
  kernels::embedding(at::zeros({5, 2}, at::kLong), table, 0);
  EXPECT_EQ(profile.uses().at("embedding").bytes, 8 * 10 + 2 * 4 * 10 * 8);
}

}  // namespace
}  // namespace megatron::kernels
