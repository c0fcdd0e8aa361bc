#include "megatron/model/multi_token/prediction.h"

#include <gtest/gtest.h>

#include <limits>

#include "megatron/comm/threads/local_backend.h"
#include "tests/model/small_model.h"
#include "tests/testing/dense_depths.h"

// Multi-token prediction against the dense model, which looks every token up where it stands.
namespace megatron::model {
namespace {

using megatron::testing::DenseDepths;
using megatron::testing::make_store;
using megatron::testing::random_batch;
using megatron::testing::random_weights;
using megatron::testing::slice_of;
using megatron::testing::StagedModel;
using megatron::testing::Tensors;
using megatron::testing::variants;
using megatron::testing::whole_gradient;

constexpr std::int64_t kAheadPositions = 8;

/// Llama's layers with `depths` of prediction.
TransformerOptions predicting_model(std::int64_t depths, bool tied = false, bool sequence_parallel = false) {
  TransformerOptions options = variants()[0].second;
  options.shape.mtp_depths = depths;
  options.shape.tied_output = tied;
  options.mtp_loss_scaling_factor = 0.6;
  options.hidden_dropout = options.attention_dropout = 0.1;
  options.label_smoothing = 0.1;
  options.sequence_parallel = sequence_parallel;
  return options;
}

/// GPT-2's layers with them, whose learned positions a depth looks up too.
TransformerOptions predicting_gpt(std::int64_t depths, bool tied = true, bool sequence_parallel = false) {
  TransformerOptions options = predicting_model(depths, tied, sequence_parallel);
  const plan::ModelShape llama = options.shape;
  options.shape = megatron::testing::small().shape;
  options.shape.mtp_depths = llama.mtp_depths;
  options.shape.tied_output = tied;
  options.activation = kernels::Activation::GeluTanh;
  options.rope = {};
  return options;
}

Batch ahead_samples(bool documents) {
  Batch batch = random_batch(10, 2, kAheadPositions);
  if (!documents) return batch;
  batch.position_ids_bs = at::arange(kAheadPositions, at::kLong).expand({2, kAheadPositions}).contiguous();
  batch.first_key_bs = at::zeros({2, kAheadPositions}, at::kInt);
  batch.position_ids_bs[1].slice(0, 3).sub_(3);
  batch.first_key_bs[1].slice(0, 3).fill_(3);
  return batch;
}

/// Loss, losses of depths and gradients on `t` ranks against the dense model's.
void expect_dense_depths(const TransformerOptions& options, const Batch& batch, int t) {
  const Tensors weights = random_weights(options.shape, 9);
  const DenseDepths dense(options, weights);
  const at::Tensor loss = dense.loss_with_depths(batch, true);
  const std::vector<at::Tensor> depths = dense.depth_losses(batch);
  loss.backward();
  comm::run_ranks(t, [&](const comm::Group& tp) {
    const auto store = make_store(options.shape, t, tp.rank(), weights);
    store.gradients().fill_(std::numeric_limits<double>::quiet_NaN());
    const TransformerStage gpt(options, store, tp);
    const LossSum got = gpt.loss(batch, true);
    EXPECT_NEAR_TENSOR(got.sum, loss, 1e-12);
    ASSERT_EQ(got.depth_sums.size(), depths.size());
    for (std::size_t k = 0; k < depths.size(); ++k) EXPECT_NEAR_TENSOR(got.depth_sums[k], depths[k], 1e-11);
    got.sum.backward();
    for (const auto& p : store.all()) {
      if (options.sequence_parallel && p->spec.sequence_partial) tp.all_reduce(p->grad);
      const at::Tensor expected = weights.at(p->spec.name).grad();
      EXPECT_NEAR_TENSOR(whole_gradient(*p, tp), slice_of(expected, p->spec), 1e-11)
          << p->spec.name << " on rank " << tp.rank();
      EXPECT_EQ(p->contributions(), p->spec.gradient_uses) << p->spec.name;
    }
  });
}

class MultiToken : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Tp, MultiToken, ::testing::Values(1, 2, 4));

TEST_P(MultiToken, LossesAndEveryGradientMatchTheDenseDepths) {
  for (const std::int64_t depths : {1, 3})
    for (const bool tied : {false, true})
      for (const bool documents : {false, true}) {
        SCOPED_TRACE(::testing::Message() << depths << " depths, tied " << tied << ", documents " << documents);
        expect_dense_depths(predicting_model(depths, tied), ahead_samples(documents), GetParam());
      }
}

TEST_P(MultiToken, SoDoThoseOfASplitSequenceAndOfOtherKindsOfLayers) {
  expect_dense_depths(predicting_model(2, false, true), ahead_samples(true), GetParam());
  TransformerOptions both = predicting_model(2, true, true);
  both.shape.norms = {.before = true, .behind = true};
  both.shape.norm_1p = both.shape.root_scaled_words = true;
  both.shape.logit_soft_cap = 5;
  expect_dense_depths(both, ahead_samples(false), GetParam());
  TransformerOptions parallel = predicting_model(2);
  parallel.shape.rms_norm = false;
  parallel.shape.linear_bias = parallel.shape.parallel = true;
  parallel.shape.output_scale = 0.5;
  parallel.shape.embedding_scale = 3;
  expect_dense_depths(parallel, ahead_samples(false), GetParam());
}

TEST_P(MultiToken, SoDoThoseOfLearnedPositions) {
  for (const bool split : {false, true})
    for (const bool documents : {false, true}) {
      TransformerOptions options = predicting_gpt(2, split, split);
      expect_dense_depths(options, ahead_samples(documents), GetParam());
      options.shape.position_offset = 2;
      options.shape.embedding_scale = 3;
      expect_dense_depths(options, ahead_samples(documents), GetParam());
    }
}

TEST_P(MultiToken, SoDoThoseOfNormsInOtherPlaces) {
  TransformerOptions original = predicting_gpt(2);
  original.shape.residual_after_norm = true;
  expect_dense_depths(original, ahead_samples(false), GetParam());
  TransformerOptions one_layer = predicting_gpt(2);  // the depths' are not the first, though like it
  one_layer.shape.embedding_norm = true;
  one_layer.shape.num_layers = 1;
  expect_dense_depths(one_layer, ahead_samples(false), GetParam());
}

TEST_P(MultiToken, RecomputedGradientsAreTheSameToTheBit) {
  for (const bool distribute : {false, true}) {
    const TransformerOptions kept = predicting_model(2);
    TransformerOptions again = kept;
    again.recompute.layers = Recompute::Layers::Uniform;
    again.recompute.distribute_inputs = distribute;
    const Tensors weights = random_weights(kept.shape, 9);
    const Batch batch = ahead_samples(false);
    comm::run_ranks(GetParam(), [&](const comm::Group& tp) {
      std::vector<at::Tensor> gradients;
      for (const TransformerOptions& options : {kept, again}) {
        const auto store = make_store(options.shape, tp.size(), tp.rank(), weights);
        const TransformerStage gpt(options, store, tp);
        gpt.loss(batch, true).sum.backward();
        gradients.push_back(store.gradients().clone());
      }
      EXPECT_TRUE(gradients[0].equal(gradients[1]));
    });
  }
}

TEST_P(MultiToken, StagesGiveTheGradientsOfTheWhole) {
  for (const bool learned : {false, true}) {
    TransformerOptions options = learned ? predicting_gpt(2, false) : predicting_model(2);
    for (const bool tied : {false, true}) {
      options.shape.tied_output = tied;
      options.shape.num_layers = 3;
      const Tensors weights = random_weights(options.shape, 9);
      const Batch batch = ahead_samples(true);
      comm::run_ranks(GetParam(), [&](const comm::Group& tp) {
        const StagedModel whole(options, plan::parts_of_layers({3}), tp, weights),
            staged(options, plan::parts_of_layers({2, 1, 0}), tp, weights);
        EXPECT_EQ(whole.step(batch).sum.item<double>(), staged.step(batch).sum.item<double>());
        Tensors sums;  // the embeddings' are on two stages
        for (const auto& store : staged.stores)
          for (const auto& p : store.all()) {
            at::Tensor& sum = sums[p->spec.name];
            sum = sum.defined() ? sum + p->grad : p->grad;
          }
        for (const auto& p : whole.stores[0].all())
          EXPECT_NEAR_TENSOR(sums.at(p->spec.name), p->grad, 1e-12) << p->spec.name;
      });
    }
  }
}

/// What stands k tokens further on is read nowhere but from there: a token has no part in what is predicted of itself.
TEST(MultiTokenBatch, IsThatOfTheTokensFurtherOnWithinADocument) {
  Batch batch = ahead_samples(true);
  batch.host = std::make_shared<const Batch>(batch);
  const Batch ahead = batch_ahead(batch, 2, at::kDouble);
  for (const Batch* each : {&ahead, ahead.host.get()})
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < kAheadPositions; ++i) {
        const bool there = i + 2 < kAheadPositions && (b == 0 || i >= 3 || i + 2 < 3);
        const auto expected = [&](const at::Tensor& x) { return there ? x[b][i + 2].item<double>() : 0.0; };
        EXPECT_EQ(each->tokens_bs[b][i].item<double>(), expected(batch.tokens_bs)) << b << " " << i;
        EXPECT_EQ(each->labels_bs[b][i].item<double>(), expected(batch.labels_bs)) << b << " " << i;
        EXPECT_EQ(each->loss_mask_bs[b][i].item<double>(), expected(batch.loss_mask_bs)) << b << " " << i;
        EXPECT_EQ(each->position_ids_bs[b][i].item<double>(), expected(batch.position_ids_bs)) << b << " " << i;
      }
  batch.loss_mask_bs = at::Tensor();
  EXPECT_EQ(batch_ahead(batch, kAheadPositions, at::kDouble).loss_mask_bs.sum().item<double>(), 0);
}

TEST(MultiTokenBatch, AddsNothingToALossThatIsNotTrainedOn) {
  const TransformerOptions options = predicting_model(2);
  const Tensors weights = random_weights(options.shape, 9);
  const auto store = make_store(options.shape, 1, 0, weights);
  const TransformerStage gpt(options, store, comm::Group());
  const LossSum loss = gpt.loss(ahead_samples(false), false);
  EXPECT_TRUE(loss.depth_sums.empty());
  EXPECT_NEAR_TENSOR(loss.sum, DenseDepths(options, weights).loss_with_depths(ahead_samples(false), false), 1e-12);
}

}  // namespace
}  // namespace megatron::model
