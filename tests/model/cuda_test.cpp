#include "tests/testing/cuda.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/parallel/backward.h"
#include "tests/model/small_model.h"

namespace megatron::model {
namespace {

using megatron::testing::DenseModel;
using megatron::testing::make_store;
using megatron::testing::random_weights;

TEST(TransformerStage, LossAndEveryGradientOnCudaMatchTheDenseModelOnTheCpu) {
  NEEDS_A_GPU();
  auto options = megatron::testing::small();
  options.hidden_dropout = options.attention_dropout = 0.2;
  auto batch = megatron::testing::random_batch(10);
  const auto weights = random_weights(options.shape, 9);
  const auto loss = DenseModel(options, weights).loss_sum(batch, true);
  loss.backward();

  const auto store = make_store(options.shape, 1, 0, weights, at::kFloat, 1234, at::kCUDA);
  batch.tokens_bs = batch.tokens_bs.to(at::kCUDA);
  batch.labels_bs = batch.labels_bs.to(at::kCUDA);
  batch.loss_mask_bs = batch.loss_mask_bs.to(at::kCUDA, at::kFloat);
  const auto got = TransformerStage(options, store, {}).loss(batch, true);
  EXPECT_NEAR_TENSOR(got.sum, loss, 1e-4);
  got.sum.backward();
  for (const auto& p : store.all()) EXPECT_NEAR_TENSOR(p->grad, weights.at(p->spec.name).grad(), 1e-4) << p->spec.name;
}

}  // namespace
}  // namespace megatron::model
