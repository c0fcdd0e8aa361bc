#include "megatron/plan/layer.h"

#include <gtest/gtest.h>

#include <random>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/model/decoding/decode.h"
#include "megatron/plan/cost/counts.h"
#include "tests/model/random_layers.h"
#include "tests/model/small_model.h"

// Everything that follows from a layer's description, for layers drawn at random: what is allocated, what is computed
// in training on every layout, and what the ways of going on from a cache give.
namespace megatron::model {
namespace {

using megatron::testing::DenseModel;
using megatron::testing::make_store;
using megatron::testing::random_batch;
using megatron::testing::random_layers;
using megatron::testing::random_weights;
using megatron::testing::slice_of;
using megatron::testing::small;
using megatron::testing::StagedModel;

constexpr std::uint64_t kSpecs = 200;

TransformerOptions random_model(std::uint64_t seed) {
  std::mt19937_64 random(1000 + seed);
  const auto flip = [&] { return random() % 2 == 1; };
  TransformerOptions options = small(3);
  options.shape.learned_positions = flip();
  options.shape.tied_output = flip();
  options.shape.residual_after_norm = random() % 4 == 0;
  options.hidden_dropout = options.attention_dropout = 0.1;
  if (flip()) options.rope = {.rotary_dim = 2, .base = 100, .interleaved = flip()};
  constexpr kernels::Activation kForms[] = {kernels::Activation::GeluTanh, kernels::Activation::GeluErf,
                                            kernels::Activation::Silu, kernels::Activation::Relu};
  options.activation = kForms[random() % std::size(kForms)];
  if (seed % 3 == 1) {  // what maximal update parametrization scales
    options.shape.embedding_scale = 3;
    options.shape.output_scale = 0.25;
    options.shape.attention_scale = 0.4;
  }
  options.shape.layers = random_layers(seed, options.shape);
  for (plan::LayerSpec& layer : options.shape.layers) layer.residual_after_norm = options.shape.residual_after_norm;
  options.shape.rms_norm = options.shape.layers.front().rms_norm;
  return options;
}

class RandomLayers : public ::testing::Test {
 protected:
  template <class Check>
  static void for_each_spec(const Check& check) {
    for (std::uint64_t seed = 0; seed < kSpecs; ++seed) {
      SCOPED_TRACE(concat("seed ", seed));
      check(random_model(seed), seed);
      if (HasFatalFailure()) return;
    }
  }
};

/// Elements of a layer, by hand.
std::int64_t elements_of(const plan::LayerSpec& layer, std::int64_t h) {
  const plan::SelfAttention attention = layer.attention();
  const plan::Mlp mlp = layer.mlp();
  const std::int64_t q = attention.heads * attention.head_size, kv = attention.groups * attention.head_size;
  const std::int64_t first = (mlp.gated ? 2 : 1) * mlp.width;
  std::int64_t count = h * (q + 2 * kv) + q * h + h * first + mlp.width * h;
  if (attention.qkv_bias()) count += q + 2 * kv;
  if (attention.bias) count += h;
  if (mlp.bias) count += first + h;
  if (attention.variant.qk_layernorm) count += (layer.rms_norm ? 2 : 4) * attention.head_size;
  return count + 2 * (layer.rms_norm ? h : 2 * h);
}

TEST_F(RandomLayers, HaveTheParametersThatAreCounted) {
  for_each_spec([](const TransformerOptions& options, std::uint64_t) {
    const plan::ModelShape& shape = options.shape;
    std::int64_t expected = shape.padded_vocab * shape.hidden * (shape.tied_output ? 1 : 2) +
                            (shape.learned_positions ? shape.max_positions * shape.hidden : 0) +
                            (shape.rms_norm ? 1 : 2) * shape.hidden;
    for (const plan::LayerSpec& layer : shape.layers) expected += elements_of(layer, shape.hidden);
    EXPECT_EQ(plan::parameter_count(shape), expected);
    const auto store = make_store(shape, 1, 0, {});
    std::int64_t allocated = 0;
    for (const auto& parameter : store.all()) allocated += parameter->value.numel();
    EXPECT_EQ(allocated, expected);
  });
}

TEST_F(RandomLayers, TrainAsTheDenseModelDoesInEveryLayout) {
  for_each_spec([](TransformerOptions options, std::uint64_t seed) {
    const auto batch = random_batch(10, 2, 8);
    const auto weights = random_weights(options.shape, seed);
    const auto loss = DenseModel(options, weights).loss_sum(batch, true);
    loss.backward();
    const int t = seed % 2 == 0 ? 1 : 2;
    options.sequence_parallel = seed % 4 == 3;
    const auto parts = seed % 3 == 0 ? plan::parts_of_layers({1, 2}) : plan::parts_of_layers({3});
    comm::run_ranks(t, [&](const comm::Group& tp) {
      const StagedModel staged(options, parts, tp, weights);
      EXPECT_NEAR_TENSOR(staged.step(batch).sum, loss, 1e-12);
      if (parts.size() > 1) return;  // which share the embedding's gradient
      for (const auto& p : staged.stores.front().all()) {
        if ((options.sequence_parallel && p->spec.sequence_partial) || p->spec.heads_partial) tp.all_reduce(p->grad);
        EXPECT_NEAR_TENSOR(megatron::testing::whole_gradient(*p, tp),
                           slice_of(weights.at(p->spec.name).grad(), p->spec), 1e-11)
            << p->spec.name << " on rank " << tp.rank();
      }
    });
  });
}

TEST_F(RandomLayers, GiveTheSameLogitsUncachedCachedAndTokenByToken) {
  for_each_spec([](const TransformerOptions& options, std::uint64_t seed) {
    const auto weights = random_weights(options.shape, seed);
    const auto tokens = random_batch(10).tokens_bs;
    const auto dtype = at::kFloat;  // of which one token goes from buffer to buffer
    const int t = seed % 2 == 0 ? 1 : 2;
    comm::run_ranks(t, [&](const comm::Group& tp) {
      const auto store = make_store(options.shape, t, tp.rank(), weights, dtype);
      Batch batch;
      batch.tokens_bs = tokens;
      const auto whole = TransformerStage(options, store, tp).logits(batch);
      const CachedGpt cached(options, store, tp);
      for (const std::int64_t step : {1, 3}) {
        auto cache = cached.make_cache(2, 7);
        for (std::int64_t seen = 0; seen + step <= 7; seen += step) {
          const auto next = cached.forward(tokens.narrow(1, seen, step), cache);
          EXPECT_NEAR_TENSOR(next, whole.select(1, seen + step - 1), 2e-5) << step << " at a time, after " << seen;
        }
      }
    });
  });
}

}  // namespace
}  // namespace megatron::model
