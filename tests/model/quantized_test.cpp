// Models whose matrices are held in 8 or 4 bits: the truth is the model with the numbers that those bits stand for,
// from which the rounding of each product's inputs to 8 bits leads away by little.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/quantized/blocks.h"
#include "megatron/model/decoding/decode.h"
#include "megatron/plan/parameters/blocks.h"
#include "tests/kernels/isa.h"
#include "tests/model/small_model.h"

namespace megatron::model {
namespace {

using megatron::testing::make_store;
using megatron::testing::random_weights;
using megatron::testing::slice_of;
using megatron::testing::Tensors;

/// A Llama whose matrices have rows of two and three blocks, one with latent attention, and a GPT-2 with a tied output.
std::vector<TransformerOptions> models_of_blocks() {
  auto llama = megatron::testing::small();
  llama.shape.hidden = 128;
  llama.shape.ffn_hidden = 192;
  llama.shape.num_groups = 2;
  llama.shape.rms_norm = llama.shape.gated = true;
  llama.shape.linear_bias = llama.shape.learned_positions = llama.shape.tied_output = false;
  llama.activation = kernels::Activation::Silu;
  llama.rope = {.rotary_dim = 32, .base = 100};
  auto latents = llama;
  latents.shape.latents = plan::Latents{.q_rank = 64, .kv_rank = 96, .nope = 16, .rope = 16, .value = 32};
  latents.shape.num_groups = 4;
  latents.shape.head_size = 32;
  latents.shape.attention.qk_layernorm = true;
  latents.rope = {.rotary_dim = 16, .base = 100, .interleaved = true};
  auto gpt2 = megatron::testing::small();
  gpt2.shape.hidden = 128;
  gpt2.shape.ffn_hidden = 192;
  return {llama, gpt2, latents};
}

constexpr GgufType kTypes[] = {GgufType::Q8_0, GgufType::Q4_1, GgufType::Q4_0};

kernels::QuantizedMatrix in_blocks(const plan::ParameterSpec& spec, const at::Tensor& w, GgufType type) {
  return kernels::quantize(w.detach().to(at::kFloat).contiguous(), plan::block_type(spec, type), spec.name);
}

/// The weights with what the blocks stand for in place of each matrix.
Tensors rounded_to_blocks(const plan::ModelShape& shape, const Tensors& weights, GgufType type) {
  Tensors rounded;
  for (const auto& spec : plan::model_parameters(shape, 1, 0)) {
    const at::Tensor w = weights.at(spec.name).detach();
    rounded[spec.name] = plan::fits_blocks(spec) ? in_blocks(spec, w, type).widened(at::kDouble) : w;
  }
  return rounded;
}

/// A store of one rank whose matrices are in blocks.
parallel::ParameterStore blocks_store(const plan::ModelShape& shape, int t, int k, const Tensors& weights,
                                      at::ScalarType dtype, GgufType type) {
  auto specs = plan::model_parameters(shape, t, k);
  std::vector<plan::ParameterSpec> plain, blocks;
  for (auto& spec : specs) (plan::fits_blocks(spec) ? blocks : plain).push_back(std::move(spec));
  auto layout = plan::buffer_layout(plain, 0);
  parallel::ParameterStore store(plain, std::move(layout), dtype, at::kCPU, 0,
                                 parallel::ParameterStore::Gradients::None);
  for (auto& spec : blocks) {
    const GgufType own = plan::block_type(spec, type);
    store.add_in_blocks(std::move(spec), own);
  }
  for (const auto& parameter : store.all()) {
    const at::Tensor part = slice_of(weights.at(parameter->spec.name).detach(), parameter->spec);
    if (parameter->in_blocks)
      parameter->packed.replace(
          std::make_shared<const kernels::QuantizedMatrix>(in_blocks(parameter->spec, part, type)));
    else
      parameter->value.copy_(part);
  }
  return store;
}

/// Logits [7, vocab] of a text whose first `prompt` tokens come together.
at::Tensor logits_of(const CachedGpt& gpt, const at::Tensor& tokens_1s, std::int64_t prompt) {
  const KvPool pool = gpt.make_pool(1);
  PagedCache cache{.pool = &pool, .blocks = {0}};
  std::vector<at::Tensor> logits{gpt.forward_all(tokens_1s.narrow(1, 0, prompt), cache)};
  for (std::int64_t i = prompt; i < 7; ++i) logits.push_back(gpt.forward(tokens_1s.narrow(1, i, 1), cache));
  return at::cat(logits);
}

TEST(QuantizedGpt, IsNearlyTheModelOfTheNumbersInItsBlocksHoweverItIsDividedAndRead) {
  const at::Tensor tokens = megatron::testing::random_batch(10).tokens_bs.narrow(0, 0, 1);
  for (const TransformerOptions& options : models_of_blocks())
    for (const GgufType type : kTypes) {
      const Tensors weights = random_weights(options.shape, 4);
      const CachedGpt wide(options, make_store(options.shape, 1, 0, rounded_to_blocks(options.shape, weights, type)),
                           {});
      const at::Tensor expected = logits_of(wide, tokens, 7);
      const double size = expected.abs().max().item<double>();
      for (const std::string& set : kernels::instruction_sets()) {
        kernels::force_instruction_set(set);
        for (const auto dtype : {at::kFloat, at::kBFloat16})
          for (const int t : {1, 2})
            comm::run_ranks(t, [&](comm::Group tp) {
              const auto store = blocks_store(options.shape, t, tp.rank(), weights, dtype, type);
              const CachedGpt gpt(options, store, tp);
              for (const std::int64_t prompt : {7, 1, 3})
                EXPECT_NEAR_TENSOR(logits_of(gpt, tokens, prompt).to(at::kDouble), expected, 0.03 * size)
                    << set << ", " << dtype << ", tp " << t << ", prompt " << prompt;
            });
      }
      kernels::force_instruction_set("auto");
    }
}

TEST(QuantizedGpt, SequencesWithACacheEachGetTheBitsThatTheyGetAlone) {
  const at::Tensor tokens = megatron::testing::random_batch(10).tokens_bs.repeat({33, 1});
  for (const TransformerOptions& options : models_of_blocks())
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto store = blocks_store(options.shape, 1, 0, random_weights(options.shape, 4), dtype, GgufType::Q4_1);
      const CachedGpt gpt(options, store, {});
      const KvPool pool = gpt.make_pool(tokens.size(0));
      std::vector<PagedCache> caches;
      std::vector<PagedCache*> all;
      std::vector<at::Tensor> expected;
      for (std::int64_t b = 0; b < tokens.size(0); ++b) {  // more than are computed at once
        const auto read = [&](auto& cache) { gpt.forward(tokens.narrow(0, b, 1).narrow(1, 0, 1 + b % 4), cache); };
        auto alone = gpt.make_cache(1, 7);
        read(alone);
        expected.push_back(gpt.forward(tokens.narrow(0, b, 1).narrow(1, 6, 1), alone));
        caches.push_back({.pool = &pool, .blocks = {b}});
        read(caches.back());
      }
      for (PagedCache& cache : caches) all.push_back(&cache);
      EXPECT_TRUE(at::equal(gpt.step(tokens.select(1, 6).contiguous(), all), at::cat(expected))) << dtype;
    }
}

TEST(QuantizedGpt, TakesWhatIsCountedForIt) {
  const TransformerOptions options = models_of_blocks().front();
  for (const GgufType type : kTypes) {
    const auto store = blocks_store(options.shape, 1, 0, random_weights(options.shape, 4), at::kFloat, type);
    for (const auto& parameter : store.all()) {
      const std::int64_t numbers = parameter->spec.local_size();
      EXPECT_EQ(parameter->value_bytes(),
                parameter->in_blocks ? plan::block_bytes(parameter->spec, *parameter->in_blocks) : 4 * numbers);
      EXPECT_EQ(parameter->in_blocks.has_value(), parameter->spec.shape.size() == 2) << parameter->spec.name;
    }
  }
}

}  // namespace
}  // namespace megatron::model
