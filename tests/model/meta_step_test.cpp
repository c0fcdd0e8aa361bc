#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/model/transformer_stage.h"
#include "tests/model/small_model.h"
#include "tests/testing/no_driver.h"

// A microbatch forward and backward on a device that has shapes but no numbers: whatever would make the host wait for a
// GPU, an item() or a shape that depends on numbers, throws there.
namespace megatron::model {
namespace {

using megatron::testing::NoDriver;

Batch moved(const Batch& batch) {
  Batch there = batch;
  there.host = std::make_shared<const Batch>(batch);
  for (at::Tensor* tensor : {&there.tokens_bs, &there.labels_bs, &there.loss_mask_bs, &there.token_types_bs,
                             &there.sentence_labels_b, &there.decoder_tokens_bs})
    *tensor = tensor->to(at::kMeta);
  return there;
}

class MetaStep : public ::testing::TestWithParam<std::pair<std::string, TransformerOptions>> {
  const megatron::testing::NoDriverOperators operators_;
};

TEST_P(MetaStep, OfAMicrobatchWaitsForNothing) {
  TransformerOptions options = GetParam().second;
  options.hidden_dropout = options.attention_dropout = 0.2;
  const auto weights = megatron::testing::random_weights(options.shape, 9);
  const auto store = megatron::testing::make_store(options.shape, 1, 0, weights, at::kFloat, 1234, at::kMeta);
  const Batch batch = megatron::testing::random_batch(10, 2, 7, at::kFloat);
  const TransformerStage stage(options, store, {});
  const LossSum loss = stage.loss(moved(batch), true);
  EXPECT_EQ(loss.count, 13);  // of 14, one is masked
  EXPECT_TRUE(loss.sum.is_meta());
  loss.sum.backward();
  EXPECT_GT(NoDriver::launches(), 20);
  EXPECT_THROW((void)loss.sum.item<double>(), c10::Error) << "a wait would have been seen";
}

/// Those of T5 look their biases up by an operator of ATen that knows no shapes without numbers.
std::vector<std::pair<std::string, TransformerOptions>> without_biases_of_distance() {
  auto all = megatron::testing::variants();
  std::erase_if(all, [](const auto& variant) { return variant.second.shape.position_buckets > 0; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Variants, MetaStep, ::testing::ValuesIn(without_biases_of_distance()),
                         [](const auto& test) { return test.param.first; });

}  // namespace
}  // namespace megatron::model
