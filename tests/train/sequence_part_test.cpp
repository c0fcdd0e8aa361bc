#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "megatron/train/data/batches.h"

namespace megatron::train {
namespace {

std::vector<std::int64_t> numbers(const at::Tensor& x) {
  const at::Tensor flat = x.contiguous().view({-1});
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

model::Batch sixteen_tokens() {
  model::Batch batch;
  batch.tokens_bs = at::arange(32, at::kLong).view({2, 16});
  batch.labels_bs = batch.tokens_bs + 1;
  batch.first_key_bs = batch.tokens_bs.to(at::kInt);
  batch.sample_ids = at::arange(2, at::kLong);
  return batch;
}

TEST(SequencePart, HasTheTokensOfTheRankAndTheirPositions) {
  const auto part = sequence_part(sixteen_tokens(), {.ranks = 4, .rank = 1});
  const std::vector<std::int64_t> tokens{2, 3, 12, 13, 18, 19, 28, 29}, positions{2, 3, 12, 13, 2, 3, 12, 13};
  EXPECT_EQ(numbers(part.tokens_bs), tokens);
  EXPECT_EQ(numbers(part.labels_bs - 1), tokens);
  EXPECT_EQ(numbers(part.position_ids_bs), positions);
  EXPECT_EQ(part.first_key_bs.size(1), 16) << "of all tokens";
  EXPECT_EQ(part.sample_ids.numel(), 2);
  EXPECT_FALSE(part.loss_mask_bs.defined());
}

TEST(SequencePart, KeepsPositionsThatBeginAgainAndCutsTheHostsCopyToo) {
  auto batch = sixteen_tokens();
  batch.position_ids_bs = batch.tokens_bs.remainder(5);
  batch.loss_mask_bs = batch.tokens_bs.to(at::kDouble);
  batch.host = std::make_shared<const model::Batch>(batch);
  const auto part = sequence_part(batch, {.ranks = 2, .rank = 0});
  for (const model::Batch* each : {static_cast<const model::Batch*>(&part), part.host.get()}) {
    EXPECT_EQ(numbers(each->position_ids_bs), numbers(each->tokens_bs.remainder(5)));
    EXPECT_EQ(numbers(each->loss_mask_bs.to(at::kLong)), numbers(each->tokens_bs));
    EXPECT_EQ(each->tokens_bs.size(1), 8);
  }
}

TEST(SequencePart, HasABertsTypesAndTheOrderOfItsSegmentsOnce) {
  auto batch = sixteen_tokens();
  batch.token_types_bs = batch.tokens_bs.remainder(3);
  batch.key_lengths_b = at::arange(9, 11, at::kInt);
  batch.sentence_labels_b = at::arange(2, at::kLong);
  for (const int rank : {0, 1}) {
    const auto part = sequence_part(batch, {.ranks = 2, .rank = rank});
    EXPECT_EQ(numbers(part.token_types_bs), numbers(part.tokens_bs.remainder(3)));
    EXPECT_EQ(numbers(part.key_lengths_b.to(at::kLong)), (std::vector<std::int64_t>{9, 10})) << "of whole samples";
    const std::vector<std::int64_t> order =
        rank == 0 ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{-1, -1};
    EXPECT_EQ(numbers(part.sentence_labels_b), order) << "counted where the first token is";
  }
}

TEST(SequencePart, CutsBothStacksOfAT5WithWhatTheDecoderIsToPredict) {
  auto batch = sixteen_tokens();
  batch.decoder_tokens_bs = at::arange(16, at::kLong).view({2, 8});
  batch.labels_bs = batch.decoder_tokens_bs + 1;
  batch.loss_mask_bs = batch.decoder_tokens_bs.to(at::kDouble);
  const auto part = sequence_part(batch, {.ranks = 2, .rank = 1});
  const std::vector<std::int64_t> decoder{2, 3, 4, 5, 10, 11, 12, 13};
  EXPECT_EQ(numbers(part.decoder_tokens_bs), decoder);
  EXPECT_EQ(numbers(part.labels_bs - 1), decoder);
  EXPECT_EQ(numbers(part.loss_mask_bs.to(at::kLong)), decoder);
  EXPECT_EQ(part.tokens_bs.size(1), 8);
}

TEST(SequencePart, IsTheBatchItselfOfOneRank) {
  const auto batch = sixteen_tokens();
  const auto part = sequence_part(batch, {});
  EXPECT_TRUE(part.tokens_bs.is_same(batch.tokens_bs));
  EXPECT_FALSE(part.position_ids_bs.defined());
}

}  // namespace
}  // namespace megatron::train
