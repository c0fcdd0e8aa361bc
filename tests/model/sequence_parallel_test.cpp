#include <gmock/gmock.h>

#include <limits>

#include "megatron/comm/counting_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/model/transformer_stage.h"
#include "tests/model/small_model.h"

// The whole model with sequence parallelism: equal to the dense model in doubles, with dropout 0.1.
namespace megatron::model {
namespace {

using megatron::testing::DenseModel;
using megatron::testing::make_store;
using megatron::testing::random_weights;
using megatron::testing::slice_of;

constexpr std::int64_t kPositions = 8;

TransformerOptions split_options(std::int64_t num_layers = 2) {
  auto options = megatron::testing::small(num_layers);
  options.shape.max_positions = 11;
  options.hidden_dropout = options.attention_dropout = 0.1;
  options.sequence_parallel = true;
  return options;
}

/// Two samples; the second is two documents, with positions and attention of their own.
Batch two_samples() {
  auto batch = megatron::testing::random_batch(10, 2, kPositions);
  batch.position_ids_bs = at::arange(kPositions, at::kLong).expand({2, kPositions}).contiguous();
  batch.first_key_bs = at::zeros({2, kPositions}, at::kInt);
  batch.position_ids_bs[1].slice(0, 3).sub_(3);
  batch.first_key_bs[1].slice(0, 3).fill_(3);
  return batch;
}

/// Loss and gradients on `t` ranks against the dense model's; `defer`: weight gradients are put off.
void expect_dense(const TransformerOptions& options, int t, bool defer = false) {
  const auto batch = two_samples();
  const auto weights = random_weights(options.shape, 9);
  const auto loss = DenseModel(options, weights).loss_sum(batch, true);
  loss.backward();
  comm::run_ranks(t, [&](const comm::Group& tp) {
    const auto store = make_store(options.shape, t, tp.rank(), weights);
    store.gradients().fill_(std::numeric_limits<double>::quiet_NaN());
    store.gradient_queue().defer(defer);
    const TransformerStage gpt(options, store, tp);
    const auto got = gpt.loss(batch, true);
    EXPECT_NEAR_TENSOR(got.sum, loss, 1e-12);
    got.sum.backward();
    parallel::run_pieces(store.gradient_queue().take());
    for (const auto& p : store.all()) {
      if (p->spec.sequence_partial) tp.all_reduce(p->grad);
      const auto expected = weights.at(p->spec.name).grad();
      EXPECT_NEAR_TENSOR(megatron::testing::whole_gradient(*p, tp), slice_of(expected, p->spec), 1e-11)
          << p->spec.name << " on rank " << tp.rank();
      EXPECT_EQ(p->contributions(), p->spec.gradient_uses) << p->spec.name;
    }
  });
}

class SequenceParallelGpt : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, SequenceParallelGpt, ::testing::Values(1, 2, 4));

TEST_P(SequenceParallelGpt, LossAndEveryGradientMatchTheDenseModel) {
  expect_dense(split_options(), GetParam());
  auto untied = split_options();
  untied.shape.tied_output = false;
  expect_dense(untied, GetParam());
}

TEST_P(SequenceParallelGpt, OtherKindsOfLayersMatchTheDenseModel) {
  for (auto& [name, options] : megatron::testing::variants()) {
    SCOPED_TRACE(name);
    options.hidden_dropout = options.attention_dropout = 0.1;
    options.sequence_parallel = true;
    for (const bool defer : {false, true}) expect_dense(options, GetParam(), defer);
  }
}

TEST_P(SequenceParallelGpt, WeightGradientsThatArePutOffAreTheSame) { expect_dense(split_options(), GetParam(), true); }

TEST_P(SequenceParallelGpt, WhatIsComputedAgainIsTheSame) {
  auto options = split_options();
  options.recompute.attention_core = options.recompute.mlp = true;
  expect_dense(options, GetParam());
  options = split_options();
  options.recompute.layers = Recompute::Layers::Uniform;
  expect_dense(options, GetParam());
}

TEST_P(SequenceParallelGpt, LogitsAreThoseOfEveryPosition) {
  const auto options = split_options();
  const auto weights = random_weights(options.shape, 9);
  const auto expected = DenseModel(options, weights).logits(two_samples(), false);
  comm::run_ranks(GetParam(), [&](const comm::Group& tp) {
    const auto store = make_store(options.shape, tp.size(), tp.rank(), weights);
    EXPECT_NEAR_TENSOR(TransformerStage(options, store, tp).logits(two_samples()), expected, 1e-12);
  });
}

/// Calls of a collective in one microbatch, forward and backward.
std::int64_t calls(const comm::Group& tp, std::int64_t num_layers, const std::string& operation) {
  const auto options = split_options(num_layers);
  const auto store = make_store(options.shape, tp.size(), tp.rank());
  const auto counted = comm::CountingBackend::wrap(tp);
  TransformerStage(options, store, counted).loss(two_samples(), true).sum.backward();
  return comm::CountingBackend::of(counted).count(operation).calls;
}

TEST(SequenceParallelCalls, ALayerCostsSixGathersAndFourScattersAndNoAllReduce) {
  comm::run_ranks(2, [](const comm::Group& tp) {
    const auto a_layer = [&](const std::string& operation) {
      return calls(tp, 3, operation) - calls(tp, 2, operation);
    };
    EXPECT_EQ(a_layer("all_gather"), 4 + 2);  // two are inputs gathered again
    EXPECT_EQ(a_layer("reduce_scatter"), 4);
    EXPECT_EQ(a_layer("all_reduce"), 0);
    // The rest: the embedding and the output layer.
    EXPECT_EQ(calls(tp, 2, "all_gather"), 2 * 6 + 2);
    EXPECT_EQ(calls(tp, 2, "reduce_scatter"), 2 * 4 + 2);
    EXPECT_EQ(calls(tp, 2, "all_reduce"), 2 * 4);  // two for each of the loss's four chunks
  });
}

}  // namespace
}  // namespace megatron::model
