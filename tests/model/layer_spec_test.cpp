#include "megatron/plan/layer.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/decode.h"
#include "megatron/model/decoding/decode.h"
#include "megatron/model/decoding/t5_decode.h"
#include "megatron/model/decoding/token_step.h"
#include "megatron/model/stage_modules.h"
#include "megatron/plan/cost/counts.h"
#include "tests/model/random_layers.h"
#include "tests/model/small_model.h"

// Everything that follows from a layer's description, for layers drawn at random: what is allocated, what is computed
// in training on every layout, and what the ways of decoding from a cache give.
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

/// Every fifth model has two stacks, of two layers each: the second one's have cross attention.
void add_second_stack(plan::ModelShape& shape) {
  shape.num_layers = 4;
  shape.encoder_layers = 2;
  shape.position_buckets = 8;
  shape.position_max_distance = 6;
  shape.attention_scale = 1;
  shape.inner_dropout = true;
  shape.output_scale = 0.25;  // of width 16, where the output is tied
  shape.learned_positions = false;
}

TransformerOptions random_model(std::uint64_t seed) {
  std::mt19937_64 random(1000 + seed);
  const auto flip = [&] { return random() % 2 == 1; };
  TransformerOptions options = small(3);
  const bool two_stacks = seed % 5 == 1;
  options.shape.learned_positions = flip();
  options.shape.tied_output = flip();
  options.shape.residual_after_norm = random() % 4 == 0;
  options.hidden_dropout = options.attention_dropout = 0.1;
  if (two_stacks) {
    add_second_stack(options.shape);
    options.shape.residual_after_norm = false;
  }
  if (flip() && !two_stacks) {
    options.rope = {.rotary_dim = 2, .base = 100, .interleaved = flip()};
    options.local_rope = options.rope;
    options.local_rope.base = 3;
  }
  if (!two_stacks) {
    options.shape.norm_1p = flip();
    options.shape.root_scaled_words = flip();
    options.shape.logit_soft_cap = flip() ? 0 : 0.7;
  }
  constexpr kernels::Activation kForms[] = {kernels::Activation::GeluTanh,
                                            kernels::Activation::GeluErf,
                                            kernels::Activation::Silu,
                                            kernels::Activation::Relu,
                                            {kernels::Activation::QuickGelu, 0.05, 1}};
  options.activation = kForms[random() % std::size(kForms)];
  if (seed % 3 == 1 && !two_stacks) {  // what maximal update parametrization scales
    options.shape.embedding_scale = 3;
    options.shape.output_scale = 0.25;
    options.shape.attention_scale = 0.4;
  }
  options.shape.norm_bias = seed % 4 != 3;
  options.shape.layers = random_layers(seed, options.shape);
  options.shape.embedding_norm = options.shape.layers.front().first_after_norm;
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
  const plan::SelfAttention& attention = layer.attention();
  const std::int64_t norm =
      (layer.norms_have_bias() ? 2 * h : h) * ((layer.norms.before ? 1 : 0) + (layer.norms.behind ? 1 : 0));
  const std::int64_t q = attention.heads * attention.head_size, kv = attention.groups * attention.head_size;
  std::int64_t count = h * (q + 2 * kv) + q * h;
  if (const auto& latents = attention.latents) {
    const std::int64_t n = attention.heads, rank = latents->q_rank, query = n * (latents->nope + latents->rope);
    count = rank > 0 ? h * rank + rank * query + (layer.norms_have_bias() ? 2 : 1) * rank : h * query;
    count += h * (latents->kv_rank + latents->rope) + (layer.norms_have_bias() ? 2 : 1) * latents->kv_rank;
    count += latents->kv_rank * n * (latents->nope + latents->value) + n * latents->value * h;
  }
  const auto add = [&](const plan::Mlp& mlp, std::int64_t times) {
    const std::int64_t first = (mlp.gated ? 2 : 1) * mlp.width;
    count += times * (h * first + mlp.width * h + (mlp.bias ? first + h : 0));
  };
  if (const plan::Experts* const experts = layer.experts()) {
    add(experts->expert, experts->count);
    if (experts->shared_width > 0) add(experts->shared(), 1);
    count += h * (experts->count + (experts->shared_gate ? 1 : 0)) + (experts->router.bias ? experts->count : 0) +
             (experts->router.linear_bias ? experts->count : 0);
  } else {
    add(layer.mlp(), 1);
  }
  if (attention.gated()) count += h * q + (attention.qkv_bias() ? q : 0);
  if (attention.qkv_bias()) count += q + 2 * kv;
  if (attention.bias) count += h;
  if (attention.variant.softmax_type == "learnable") count += attention.heads;
  if (attention.variant.qk_layernorm_full)
    count += q + kv;
  else if (attention.variant.qk_layernorm && !attention.latents)
    count += (layer.norms_have_bias() ? 4 : 2) * attention.head_size;
  if (layer.branches.size() == 3) {
    const auto across = std::get<plan::CrossAttention>(layer.branches[1].inner);
    const std::int64_t rows = across.heads * across.head_size;  // of queries; as many of keys and of values
    count += 4 * rows * h + (across.bias ? 3 * rows + h : 0) + norm;
  }
  const bool shared = layer.branches.back().reads == plan::Branch::Reads::NormBefore;
  return count + 2 * norm - (shared ? (layer.norms_have_bias() ? 2 * h : h) : 0);
}

TEST_F(RandomLayers, HaveTheParametersThatAreCounted) {
  for_each_spec([](const TransformerOptions& options, std::uint64_t) {
    const plan::ModelShape& shape = options.shape;
    std::int64_t expected = shape.padded_vocab * shape.hidden * (shape.tied_output ? 1 : 2) +
                            (shape.learned_positions ? shape.max_positions * shape.hidden : 0) +
                            (shape.norms_have_bias() ? 2 : 1) * shape.hidden * (shape.encoder_decoder() ? 2 : 1) +
                            2 * shape.position_buckets * shape.num_heads;
    for (const plan::LayerSpec& layer : shape.layers) expected += elements_of(layer, shape.hidden);
    EXPECT_EQ(plan::parameter_count(shape), expected);
    const auto store = make_store(shape, 1, 0, {});
    std::int64_t allocated = 0;
    for (const auto& parameter : store.all()) allocated += parameter->value.numel();
    EXPECT_EQ(allocated, expected);
  });
}

/// Multiply-adds of a layer counted one by one: rows through every matrix, and every pair of a query and a key that it
/// sees.
double flops_by_counting(const plan::LayerSpec& layer, std::int64_t h, std::int64_t s, std::int64_t encoder) {
  double count = 0;
  const auto matrix = [&](std::int64_t rows, std::int64_t in, std::int64_t out) {
    count += 2.0 * static_cast<double>(rows * in * out);
  };
  for (const plan::Branch& branch : layer.branches) {
    if (const auto* attention = std::get_if<plan::SelfAttention>(&branch.inner)) {
      const std::int64_t n = attention->heads, q = n * attention->head_size;
      std::int64_t of_pair = 2 * q;  // what a query is multiplied by of a key and its value
      if (const auto& latents = attention->latents) {
        const std::int64_t query = n * (latents->nope + latents->rope), value = n * latents->value;
        if (latents->q_rank > 0) matrix(s, h, latents->q_rank);
        matrix(s, latents->q_rank > 0 ? latents->q_rank : h, query);
        matrix(s, h, latents->kv_rank + latents->rope);
        matrix(s, latents->kv_rank, n * latents->nope + value);
        matrix(s, value, h);
        of_pair = query + value;
      } else {
        matrix(s, h, (attention->gated() ? 2 : 1) * q + 2 * attention->groups * attention->head_size);
        matrix(s, q, h);
      }
      const std::int64_t window = attention->variant.sliding_window;
      std::int64_t pairs = 0;  // of a causal one half of the square, as Megatron-LM counts: the diagonal counts half
      for (std::int64_t i = 0; i < s; ++i)
        for (std::int64_t k = 0; k < s; ++k)
          if (!attention->causal || (k <= i && (window == 0 || k > i - window)))
            pairs += 2 - (attention->causal && k == i);
      // The edge of a window counts half too.
      if (attention->causal && window > 0 && window < s) pairs += s - window;
      count += 2.0 * static_cast<double>(of_pair * pairs) / 2;
    }
    if (const auto* across = std::get_if<plan::CrossAttention>(&branch.inner)) {
      const std::int64_t q = across->heads * across->head_size;
      matrix(s, h, q);
      matrix(encoder, h, 2 * q);
      matrix(s, q, h);
      matrix(2 * s, q, encoder);
    }
    if (const auto* mlp = std::get_if<plan::Mlp>(&branch.inner)) {
      matrix(s, h, mlp->gated ? 2 * mlp->width : mlp->width);
      matrix(s, mlp->width, h);
    }
    if (const auto* experts = std::get_if<plan::Experts>(&branch.inner)) {
      matrix(s, h, experts->count);
      for (const auto& [mlp, rows] :
           {std::pair{experts->expert, s * experts->top_k}, std::pair{experts->shared(), s}}) {
        matrix(rows, h, mlp.gated ? 2 * mlp.width : mlp.width);
        matrix(rows, mlp.width, h);
      }
      if (experts->shared_gate) matrix(s, h, 1);
    }
  }
  return count;
}

TEST_F(RandomLayers, HaveTheOperationsThatAreCounted) {
  for_each_spec([](const TransformerOptions& options, std::uint64_t) {
    const plan::ModelShape& shape = options.shape;
    const std::int64_t s = 7, written = shape.encoder_decoder() ? 5 : 7, b = 3;
    double all = 0;
    for (std::int64_t l = 0; l < shape.num_layers; ++l) {
      const plan::LayerSpec layer = shape.layer(l);
      const double expected =
          b * flops_by_counting(layer, shape.hidden, shape.encoder_decoder() && !shape.in_encoder(l) ? written : s, s);
      const auto planned = plan::layer_flops(layer, plan::tokens_of(layer, b, s, written));
      EXPECT_NEAR(planned.matrices + planned.attention, expected, 1e-9 * expected) << "layer " << l;
      all += expected;
    }
    all += 2.0 * static_cast<double>(b * written * shape.hidden * shape.padded_vocab);
    EXPECT_NEAR(plan::training_flops(shape, b, s, shape.encoder_decoder() ? written : 0), 3 * all, 1e-9 * all);
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
    const std::int64_t layers = options.shape.num_layers, first = 1 + static_cast<std::int64_t>(seed / 3 % 2);
    const auto parts = seed % 3 == 0 ? plan::parts_of_layers({first, layers - first}) : plan::parts_of_layers({layers});
    comm::run_ranks(t, [&](const comm::Group& tp) {
      const StagedModel staged(options, parts, tp, weights);
      EXPECT_NEAR_TENSOR(staged.step(batch).sum, loss, 1e-12);
      std::map<std::string, std::pair<plan::ParameterSpec, at::Tensor>> gradients;  // of all stages that have it
      for (const parallel::ParameterStore& store : staged.stores)
        for (const auto& p : store.all()) {
          if (options.sequence_parallel && p->spec.sequence_partial) tp.all_reduce(p->grad);
          const at::Tensor gradient = megatron::testing::whole_gradient(*p, tp);
          const auto [place, is_new] = gradients.try_emplace(p->spec.name, p->spec, gradient);
          if (!is_new) place->second.second = place->second.second + gradient;
        }
      EXPECT_EQ(gradients.size(), weights.size());
      for (const auto& [name, found] : gradients)
        EXPECT_NEAR_TENSOR(found.second, slice_of(weights.at(name).grad(), found.first), 1e-11)
            << name << " on rank " << tp.rank() << " of " << parts.size() << " stages";
    });
  });
}

/// The logits of what two stacks write, one token after another, compared with those of all at once.
void expect_same_answers(const TransformerOptions& options, const parallel::ParameterStore& store,
                         const comm::Group& tp) {
  Batch batch = random_batch(10);
  const auto whole = TransformerStage(options, store, tp).logits(batch);
  const CachedT5 cached(options, plan::parts_of_layers({options.shape.num_layers}).front(), store, tp);
  auto cache = cached.begin(cached.read(batch.tokens_bs));
  for (std::int64_t seen = 0; seen < 7; ++seen) {
    const auto next = cached.write(batch.decoder_tokens_bs.select(1, seen), cache);
    EXPECT_NEAR_TENSOR(next, whole.select(1, seen), 2e-5) << "after " << seen;
  }
}

TEST_F(RandomLayers, GiveTheSameLogitsUncachedCachedAndTokenByToken) {
  std::atomic<int> one_stack = 0, other_way = 0, token_by_token = 0;
  for_each_spec([&](const TransformerOptions& options, std::uint64_t seed) {
    const auto weights = random_weights(options.shape, seed);
    const auto tokens = random_batch(10).tokens_bs;
    const auto dtype = at::kFloat;  // of which one token goes from buffer to buffer
    const int t = seed % 2 == 0 ? 1 : 2;
    comm::run_ranks(t, [&](const comm::Group& tp) {
      const auto store = make_store(options.shape, t, tp.rank(), weights, dtype);
      if (options.shape.encoder_decoder()) return expect_same_answers(options, store, tp);
      const StageModules modules(options, plan::parts_of_layers({3}).front(), store, tp);
      if (tp.rank() == 0) {
        ++one_stack;
        const auto all_rows = [](const plan::LayerSpec& layer) {
          return layer.experts() != nullptr || layer.attention().latents || layer.attention().gated();
        };
        if (std::ranges::any_of(options.shape.layers, all_rows)) ++other_way;
        token_by_token += takes_token(modules, at::zeros({1, 2, options.shape.hidden})) ? 1 : 0;
      }
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
  EXPECT_EQ(one_stack, 160);
  if (kernels::decodes(at::zeros({1, 2, 16}))) {
    EXPECT_EQ(token_by_token, one_stack - other_way) << "the others went the general way";
  }
}

}  // namespace
}  // namespace megatron::model
