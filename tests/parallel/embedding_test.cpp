#include "megatron/parallel/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/testing/tensors.h"

namespace megatron::parallel {
namespace {

using megatron::testing::make_parameter;
using megatron::testing::slice_of;

at::Tensor ids(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong).view({-1, 2}); }

TEST(VocabParallelEmbedding, MatchesTheDenseTableForwardAndBackward) {
  for (const int t : {1, 2, 4}) {
    auto table = at::randn({12, 5}, at::kDouble).requires_grad_(true);
    const auto tokens = ids({0, 9, 3, 3, 8, 0}), dy = at::randn({3, 2, 5}, at::kDouble);
    const auto expected = at::embedding(table, tokens);
    expected.backward(dy);
    comm::run_ranks(t, [&](comm::Group tp) {
      const auto w = make_parameter("table", table, 0, t, tp.rank());
      const VocabParallelEmbedding embedding(w, 10, "token id", tp);
      const auto y = embedding.forward(tokens);
      EXPECT_NEAR_TENSOR(y, expected, 0) << "tp " << t;
      y.backward(dy);
      EXPECT_NEAR_TENSOR(w->grad, slice_of(table.grad(), w->spec), 1e-14) << "tp " << t;
      embedding.forward(tokens).backward(dy);
      EXPECT_NEAR_TENSOR(w->grad, slice_of(table.grad().mul(2), w->spec), 1e-14) << "tp " << t;
    });
  }
}

TEST(VocabParallelEmbedding, NamesIdAndPositionOfOneOutsideTheVocabularyOnEveryRank) {
  comm::run_ranks(2, [](comm::Group tp) {
    const auto w = make_parameter("table", at::randn({12, 5}, at::kDouble), 0, 2, tp.rank());
    const VocabParallelEmbedding embedding(w, 10, "token id", tp);
    const auto message = [&](const at::Tensor& tokens) -> std::string {
      try {
        embedding.forward(tokens);
      } catch (const ConfigError& e) {
        return e.what();
      }
      return "no error";
    };
    // 10 has a row, but only as padding.
    EXPECT_THAT(message(ids({0, 9, 3, 10})), ::testing::HasSubstr("token id 10 at position 1 of sample 1"));
    EXPECT_THAT(message(ids({0, 9, -1, 3})), ::testing::HasSubstr("token id -1 at position 1 of sample 0"));
    EXPECT_THAT(message(ids({0, 50000})), ::testing::HasSubstr("0 … 9"));
    EXPECT_EQ(message(ids({0, 9})), "no error");
  });
}

}  // namespace
}  // namespace megatron::parallel
