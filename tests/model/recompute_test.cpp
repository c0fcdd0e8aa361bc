#include "megatron/model/recompute.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "megatron/comm/counting_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/model/small_model.h"

namespace megatron::model {
namespace {

using megatron::testing::random_batch;
using megatron::testing::random_weights;
using megatron::testing::small;
using megatron::testing::StagedModel;
using megatron::testing::variants;
using Layers = Recompute::Layers;

std::vector<Recompute> all_modes() {
  std::vector<Recompute> modes{{.gelu = false}, {.attention_core = true}, {.mlp = true}};
  modes.push_back({.attention_core = true, .mlp = true, .gelu = false});
  for (const std::int64_t n : {1, 2, 3, 9}) modes.push_back({.layers = Layers::Uniform, .num_layers = n});
  for (const std::int64_t n : {0, 1, 3}) modes.push_back({.layers = Layers::Block, .num_layers = n, .mlp = true});
  modes.push_back({.layers = Layers::Listed, .listed = {false, true, false, true}});
  modes.push_back({.layers = Layers::Listed, .listed = {true, false, false, false}, .mlp = true});
  modes.push_back({.layers = Layers::Uniform, .num_layers = 2, .distribute_inputs = true, .attention_core = true});
  return modes;
}

/// Gradients of two microbatches through two stages, in one tensor.
at::Tensor gradients(const TransformerOptions& options, const comm::Group& tp, at::ScalarType dtype,
                     const megatron::testing::Tensors& weights, bool defer) {
  const plan::StageSpec first{.first_layer = 0, .num_layers = 3, .embedding = true, .output = false};
  const plan::StageSpec last{.first_layer = 3, .num_layers = 1, .embedding = false, .output = true};
  const StagedModel gpt(options, {first, last}, tp, weights, dtype);
  for (const std::int64_t b : {2, 1}) {
    for (const auto& store : gpt.stores) store.gradient_queue().defer(defer);
    gpt.step(random_batch(10, b, 6, dtype));
    for (const auto& store : gpt.stores) parallel::run_pieces(store.gradient_queue().take());
  }
  return at::cat({gpt.stores[0].gradients(), gpt.stores[1].gradients()});
}

void expect_equal_bits(TransformerOptions stored, int t, at::ScalarType dtype, bool sequence_parallel) {
  stored.hidden_dropout = stored.attention_dropout = 0.1;
  stored.sequence_parallel = sequence_parallel;
  const auto weights = random_weights(stored.shape, 9);
  comm::run_ranks(t, [&](comm::Group tp) {
    TransformerOptions options = stored;  // each rank's own: it is written below
    const auto expected = gradients(options, tp, dtype, weights, false);
    int k = 0;
    for (const Recompute& mode : all_modes()) {
      options.recompute = mode;
      for (const bool defer : {false, true})
        EXPECT_TRUE(at::equal(gradients(options, tp, dtype, weights, defer), expected))
            << "mode " << k << (defer ? " deferred" : "");
      ++k;
    }
  });
}

class Recomputation : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Tp, Recomputation, ::testing::Values(1, 2));

TEST_P(Recomputation, LeavesEveryBitOfTheGradientsInDoubles) {
  expect_equal_bits(small(4), GetParam(), at::kDouble, false);
}
TEST_P(Recomputation, LeavesEveryBitOfTheGradientsInFloats) {
  expect_equal_bits(small(4), GetParam(), at::kFloat, false);
}
TEST_P(Recomputation, LeavesEveryBitOfTheGradientsWithSequenceParallelism) {
  expect_equal_bits(small(4), GetParam(), at::kFloat, true);
}
TEST_P(Recomputation, LeavesEveryBitOfTheGradientsOfOtherKindsOfLayers) {
  for (const auto& [name, options] : variants(4))
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(name);
      expect_equal_bits(options, GetParam(), at::kFloat, sequence_parallel);
    }
}

TEST(Recomputed, ComputesAgainInBackwardAloneAndKeepsNothingButItsInput) {
  int calls = 0;
  const auto held = std::make_shared<int>();
  const auto triple = [&calls, held](at::Tensor x, const at::Tensor& /*beside*/, parallel::Value value) {
    EXPECT_EQ(value, calls == 1 ? parallel::Value::Unread : parallel::Value::Needed);
    ++calls;
    const auto y = parallel::without_autograd([&] { return x.detach() * 3; });
    return parallel::with_backward(
        {x}, y, [held](const std::vector<at::Tensor>& grads) -> std::vector<at::Tensor> { return {grads[0] * 3}; });
  };
  parallel::GraphLeaf leaf(at::ones({4}));
  parallel::GraphRoot root(recomputed(leaf.take(), triple, {}));
  EXPECT_EQ(calls, 1);
  const auto before = held.use_count();
  root.backward(at::ones({4}));
  EXPECT_EQ(calls, 2);
  EXPECT_LT(held.use_count(), before);
  EXPECT_EQ(leaf.take_gradient()[0].item<double>(), 3);
  recomputed(at::ones({4}), triple, {});
  EXPECT_EQ(calls, 3);
}

// Of a layer that is computed again, the second half's product ends it: only backward goes through that.
TEST(Recomputed, DoesNotSumTheEndOfAGroupOverRanksAgain) {
  const auto batch = random_batch(10, 2, 6);
  const auto all_reduces = [&](const Recompute& recompute) {
    auto options = small(4);
    options.recompute = recompute;
    const auto weights = random_weights(options.shape, 9);
    std::int64_t calls = 0;
    comm::run_ranks(2, [&](comm::Group world) {
      const auto tp = comm::CountingBackend::wrap(world);
      StagedModel(options, {plan::whole_model(4)}, tp, weights).step(batch);
      if (world.rank() == 0) calls = comm::CountingBackend::of(tp).count("all_reduce").calls;
    });
    return calls;
  };
  const auto kept = all_reduces({});
  EXPECT_EQ(all_reduces({.layers = Layers::Uniform, .num_layers = 1}), kept + 4);      // the attention's, of each layer
  EXPECT_EQ(all_reduces({.layers = Layers::Uniform, .num_layers = 2}), kept + 4 + 2);  // and one MLP's of each group
}

}  // namespace
}  // namespace megatron::model
