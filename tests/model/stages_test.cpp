#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "megatron/comm/threads/local_backend.h"
#include "tests/model/small_model.h"

namespace megatron::model {
namespace {

using megatron::testing::random_batch;
using megatron::testing::random_weights;
using megatron::testing::small;
using megatron::testing::StagedModel;
using megatron::testing::Tensors;
using megatron::testing::variants;
using plan::StageSpec;

TransformerOptions with_dropout(std::int64_t num_layers) {
  auto options = small(num_layers);
  options.hidden_dropout = options.attention_dropout = 0.1;
  return options;
}

std::vector<StageSpec> split(const std::vector<std::int64_t>& layers, bool embedding_alone = false) {
  std::vector<StageSpec> parts;
  std::int64_t first = 0;
  if (embedding_alone) parts.push_back({.first_layer = 0, .num_layers = 0, .embedding = true, .output = false});
  for (const std::int64_t n : layers) {
    parts.push_back({.first_layer = first, .num_layers = n, .embedding = parts.empty(), .output = false});
    first += n;
  }
  parts.back().output = true;
  return parts;
}

const std::vector<std::vector<StageSpec>> kSplits = {split({3}),         split({2, 1}),       split({1, 1, 1}),
                                                     split({3, 0}),      split({1, 2}, true), split({0, 3}),
                                                     split({3, 0}, true)};

class Stages : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Tp, Stages, ::testing::Values(1, 2));

/// Each split's loss and gradients against the whole model's, bit for bit. `tied_error`: of the tied embedding, whose
/// two contributions are added in another order.
void expect_bits_of_the_whole(const TransformerOptions& options, int t, at::ScalarType dtype, double tied_error) {
  const auto weights = random_weights(options.shape, 9);
  const auto batch = random_batch(10, 2, 6, dtype);
  comm::run_ranks(t, [&](comm::Group tp) {
    const StagedModel whole(options, split({3}), tp, weights, dtype);
    const auto loss = whole.step(batch);
    for (const auto& parts : kSplits) {
      const StagedModel staged(options, parts, tp, weights, dtype);
      const auto got = staged.step(batch);
      EXPECT_EQ(got.sum.item<double>(), loss.sum.item<double>());
      EXPECT_EQ(got.count, loss.count);
      Tensors shared;  // by several stages
      for (const auto& store : staged.stores)
        for (const auto& p : store.all()) {
          const auto& expected = whole.stores[0].get(p->spec.name)->grad;
          auto& sum = shared[p->spec.name];
          EXPECT_EQ(sum.defined(), p->spec.shared_copy) << p->spec.name;
          sum = sum.defined() ? sum + p->grad : p->grad;
          if (!p->spec.across_layers && p->spec.name != "embedding.word_embeddings.weight") {
            EXPECT_TRUE(at::equal(p->grad, expected)) << p->spec.name << " of " << parts.size() << " stages";
          }
          EXPECT_EQ(p->contributions(), p->spec.gradient_uses) << p->spec.name;
        }
      for (const auto& [name, sum] : shared) EXPECT_NEAR_TENSOR(sum, whole.stores[0].get(name)->grad, tied_error);
    }
  });
}

TEST_P(Stages, GiveTheBitsOfTheWholeModelHoweverItIsSplit) {
  expect_bits_of_the_whole(with_dropout(3), GetParam(), at::kDouble, 1e-14);
  expect_bits_of_the_whole(with_dropout(3), GetParam(), at::kFloat, 1e-6);
}

TEST_P(Stages, WithSequenceParallelismGiveTheBitsOfTheWholeModelHoweverItIsSplit) {
  auto options = with_dropout(3);
  options.sequence_parallel = true;
  expect_bits_of_the_whole(options, GetParam(), at::kDouble, 1e-14);
}

TEST_P(Stages, OfOtherKindsOfLayersGiveTheBitsOfTheWholeModelHoweverItIsSplit) {
  for (auto& [name, options] : variants(3)) {
    SCOPED_TRACE(name);
    options.hidden_dropout = options.attention_dropout = 0.1;
    expect_bits_of_the_whole(options, GetParam(), at::kFloat, 1e-6);
  }
}

TEST(Stage, LetsGoOfItsOutputAndOfItsGraphOnceItHasGoneBackward) {
  const auto options = with_dropout(2);
  const auto parts = split({1, 1}, true);
  const StagedModel staged(options, parts, {}, random_weights(options.shape, 9));
  at::Tensor x;
  for (const std::size_t k : {0U, 1U}) {
    parallel::GraphLeaf leaf(k == 0 ? at::zeros({0}) : at::ones({7, 2, 16}, at::kDouble));
    auto y = staged.stages[k].forward(k == 0 ? at::Tensor() : leaf.take(), random_batch(10), true);
    parallel::GraphRoot root(y);
    const auto output = c10::weak_intrusive_ptr<c10::StorageImpl>(y.storage().getWeakStorageImpl());
    const auto gradient = at::ones_like(y);
    y.reset();
    EXPECT_EQ(output.use_count(), 0U) << "stage " << k;
    root.backward(gradient);
    EXPECT_EQ(gradient.use_count(), 1U) << "stage " << k;
  }
}

TEST(Stage, DeferredWeightGradientsHaveTheBitsOfThoseComputedAtOnce) {
  const auto options = with_dropout(2);
  const auto weights = random_weights(options.shape, 9);
  for (const int t : {1, 2})
    comm::run_ranks(t, [&](comm::Group tp) {
      const StagedModel at_once(options, split({2}), tp, weights), deferred(options, split({2}), tp, weights);
      const auto& store = deferred.stores[0];
      std::vector<std::vector<parallel::GradientQueue::Work>> microbatches;
      store.gradients().fill_(std::numeric_limits<double>::quiet_NaN());
      for (const std::int64_t b : {2, 1, 2}) {
        at_once.step(random_batch(10, b));
        store.gradient_queue().defer(true);
        deferred.step(random_batch(10, b));
        microbatches.push_back(store.gradient_queue().take());
        EXPECT_EQ(microbatches.back().size(), 2U * 4);  // layers, matrices
      }
      for (const auto& p : store.all())
        EXPECT_EQ(p->contributions() == 0,
                  p->spec.name.find("linear_") != std::string::npos &&
                      (p->value.dim() == 2 || p->spec.name.find("linear_qkv") != std::string::npos))
            << p->spec.name;
      for (auto& pieces : microbatches) parallel::run_pieces(std::move(pieces));
      for (const auto& p : store.all()) {
        EXPECT_TRUE(at::equal(p->grad, at_once.stores[0].get(p->spec.name)->grad)) << p->spec.name;
        EXPECT_EQ(p->contributions(), 3 * p->spec.gradient_uses) << p->spec.name;
      }
    });
}

TEST(Stage, TakesAnInputUnlessItIsTheFirstAndGivesALossIfItIsTheLast) {
  const auto options = with_dropout(2);
  const StagedModel staged(options, split({1, 1}), {}, random_weights(options.shape, 9));
  const auto batch = random_batch(10);
  const auto x = at::ones({7, 2, 16}, at::kDouble);
  EXPECT_THROW(staged.stages[0].forward(x, batch, true), std::logic_error);
  EXPECT_THROW(staged.stages[0].loss(batch, true), std::logic_error);
  EXPECT_THROW(staged.stages[1].loss(batch, true), std::logic_error);
  EXPECT_THROW(staged.stages[1].forward(x, batch, true), std::logic_error);
  EXPECT_THROW(staged.stages[1].logits(batch), std::logic_error);
}

}  // namespace
}  // namespace megatron::model
