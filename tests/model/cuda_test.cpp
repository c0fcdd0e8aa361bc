#include <ATen/ops/randint.h>

#include "megatron/model/gpt.h"
#include "megatron/parallel/backward.h"
#include "tests/testing/cuda.h"
#include "tests/testing/dense_gpt.h"

namespace megatron::model {
namespace {

using megatron::testing::DenseGpt;
using megatron::testing::make_store;
using megatron::testing::random_weights;

TEST(Gpt, LossAndEveryGradientOnCudaMatchTheDenseModelOnTheCpu) {
  NEEDS_A_GPU();
  GptOptions options;
  options.shape = {.num_layers = 2,
                   .hidden = 16,
                   .num_heads = 4,
                   .ffn_hidden = 24,
                   .vocab = 10,
                   .padded_vocab = 12,
                   .max_positions = 8};
  options.hidden_dropout = options.attention_dropout = 0.2;
  options.loss_chunk_tokens = 5;
  auto generator = at::detail::createCPUGenerator(3);
  Batch batch;
  batch.tokens_bs = at::randint(0, 10, {2, 7}, generator, at::kLong);
  batch.labels_bs = at::randint(0, 10, {2, 7}, generator, at::kLong);
  batch.loss_mask_bs = at::ones({2, 7}, at::kDouble);
  batch.sample_ids = at::arange(2, at::kLong);
  const auto weights = random_weights(options.shape, 9);
  const auto loss = DenseGpt(options, weights).loss_sum(batch, true);
  loss.backward();

  const auto store = make_store(options.shape, 1, 0, weights, at::kFloat, 1234, at::kCUDA);
  batch.tokens_bs = batch.tokens_bs.to(at::kCUDA);
  batch.labels_bs = batch.labels_bs.to(at::kCUDA);
  batch.loss_mask_bs = batch.loss_mask_bs.to(at::kCUDA, at::kFloat);
  const auto got = Gpt(options, store, {}).loss(batch, true);
  EXPECT_NEAR_TENSOR(got.sum, loss, 1e-4);
  got.sum.backward();
  for (const auto& p : store.all()) EXPECT_NEAR_TENSOR(p->grad, weights.at(p->spec.name).grad(), 1e-4) << p->spec.name;
}

}  // namespace
}  // namespace megatron::model
