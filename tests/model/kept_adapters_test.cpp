// Adapters beside the weights of a model that decodes: the truth is the model into whose weights they are merged.
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/quantized/blocks.h"
#include "megatron/model/decoding/decode.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/plan/parameters/blocks.h"
#include "tests/model/small_model.h"
#include "tests/testing/adapters.h"

namespace megatron::model {
namespace {

using megatron::testing::adapted;
using megatron::testing::kept;
using megatron::testing::make_store;
using megatron::testing::merged;
using megatron::testing::random_adapter;
using megatron::testing::random_batch;
using megatron::testing::random_weights;
using megatron::testing::Tensors;
using megatron::testing::WholeAdapter;

const std::vector<plan::Lora>& loras() {
  static const std::vector<plan::Lora> all = {
      {.rank = 3, .alpha = 6, .targets = {"all-linear"}},
      {.rank = 2, .alpha = 5, .rslora = true, .targets = {"v_proj", "down_proj"}},
      {.rank = 2, .alpha = 4, .dora = true, .targets = {"all-linear"}}};
  return all;
}

/// Decoders of which layers have adapters.
std::vector<std::pair<std::string, TransformerOptions>> decoders() {
  auto models = megatron::testing::variants();
  std::erase_if(models, [](const auto& model) {
    const plan::ModelShape& shape = model.second.shape;
    const plan::LayerSpec layer = shape.layer(0);
    return !shape.causal || shape.encoder_decoder() ||
           plan::adapter_parameters(adapted(shape, loras()[0]), 1, 0, {plan::whole_model(shape.num_layers)}).empty();
  });
  models.emplace_back("gpt2", megatron::testing::small());
  for (auto& mixture : megatron::testing::mixtures()) models.push_back(std::move(mixture));
  return models;
}

/// Sequence b of `tokens` [b, s] in a pool: logits after its prompt of b + 1 tokens, and after each of `steps` more,
/// all sequences at once. adapters: of each.
std::vector<std::vector<at::Tensor>> written(const CachedGpt& gpt, const at::Tensor& tokens,
                                             const std::vector<std::int64_t>& adapters, std::int64_t steps) {
  const KvPool pool = gpt.make_pool(std::ssize(adapters));
  std::vector<PagedCache> caches;
  std::vector<PagedCache*> all;
  std::vector<std::vector<at::Tensor>> logits(adapters.size());
  for (std::int64_t b = 0; b < std::ssize(adapters); ++b) {
    caches.push_back({.pool = &pool, .blocks = {b}, .adapter = adapters[static_cast<std::size_t>(b)]});
    const at::Tensor prompt = tokens.narrow(0, b, 1).narrow(1, 0, b % 4 + 1);
    logits[static_cast<std::size_t>(b)].push_back(gpt.forward(prompt, caches.back())[0]);
  }
  for (PagedCache& cache : caches) all.push_back(&cache);
  for (std::int64_t i = 0; i < steps; ++i) {
    std::vector<std::int64_t> next;
    for (std::int64_t b = 0; b < std::ssize(adapters); ++b)
      next.push_back(tokens[b][b % 4 + 1 + i].item<std::int64_t>());
    const at::Tensor after = gpt.step(at::tensor(next, at::kLong), all);
    for (std::size_t b = 0; b < all.size(); ++b) logits[b].push_back(after[static_cast<std::int64_t>(b)]);
  }
  return logits;
}

constexpr std::int64_t kSteps = 3;

class KeptAdapters : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Tp, KeptAdapters, ::testing::Values(1, 2));

TEST_P(KeptAdapters, OfEachSequenceOfABatchAreAsIfTheyWereMerged) {
  const auto tokens = random_batch(10).tokens_bs.repeat({4, 1});
  const std::vector<std::int64_t> chosen = {1, 0, 3, 2, 0, 3, 1};
  for (const auto& [name, options] : decoders())
    for (const auto dtype : {at::kDouble, at::kFloat})
      comm::run_ranks(GetParam(), [&, &model = options, &called = name](const comm::Group& tp) {
        const auto weights = random_weights(model.shape, 4);
        std::vector<WholeAdapter> adapters;
        for (const plan::Lora& lora : loras())
          adapters.push_back(random_adapter(model.shape, 20 + adapters.size(), lora));
        TransformerOptions beside = model;
        beside.kept = kept(model.shape, plan::whole_model(model.shape.num_layers), tp, adapters, dtype);
        const auto store = make_store(model.shape, tp.size(), tp.rank(), weights, dtype);
        const CachedGpt gpt(beside, store, tp), plain(model, store, tp);
        const auto got = written(gpt, tokens, chosen, kSteps);
        const std::vector<std::int64_t> none(chosen.size());
        for (std::int64_t which = 0; which <= std::ssize(adapters); ++which) {
          const auto theirs =
              which == 0 ? weights : merged(model.shape, weights, adapters[static_cast<std::size_t>(which - 1)]);
          const auto own = make_store(model.shape, tp.size(), tp.rank(), theirs, dtype);
          const auto want = written(CachedGpt(model, own, tp), tokens, none, kSteps);
          const auto base = written(plain, tokens, none, kSteps);
          for (std::size_t b = 0; b < chosen.size(); ++b)
            for (std::size_t i = 0; i < want[b].size() && chosen[b] == which; ++i) {
              EXPECT_NEAR_TENSOR(got[b][i], want[b][i], dtype == at::kDouble ? 1e-12 : 2e-5)
                  << called << ", " << dtype << ", sequence " << b << ", step " << i;
              if (which > 0) {
                EXPECT_GT(megatron::testing::relative_error(got[b][i], base[b][i]), 1e-3) << called;
              } else if (dtype == at::kFloat || !model.shape.experts) {  // whose sums in float64 are of all their rows
                EXPECT_TRUE(got[b][i].equal(base[b][i])) << called << ", " << dtype << ", " << b << ", " << i;
              }
            }
        }
      });
}

TEST_P(KeptAdapters, GiveASequenceTheBitsThatItGetsAlone) {
  const auto tokens = random_batch(10).tokens_bs.repeat({13, 1});
  for (const auto& [name, options] : decoders())
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      comm::run_ranks(GetParam(), [&, &model = options, &called = name](const comm::Group& tp) {
        std::vector<WholeAdapter> adapters;
        for (const plan::Lora& lora : loras())
          adapters.push_back(random_adapter(model.shape, 20 + adapters.size(), lora));
        TransformerOptions beside = model;
        beside.kept = kept(model.shape, plan::whole_model(model.shape.num_layers), tp, adapters, dtype);
        const auto store = make_store(model.shape, tp.size(), tp.rank(), random_weights(model.shape, 4), dtype);
        const CachedGpt gpt(beside, store, tp);
        std::vector<std::int64_t> chosen;  // of one adapter more than a product of few rows takes at once
        for (std::int64_t b = 0; b < tokens.size(0); ++b) chosen.push_back(b < 22 ? 1 : b % 4);
        const auto got = written(gpt, tokens, chosen, kSteps);
        for (std::int64_t b = 0; b < tokens.size(0); b += b < 20 ? 5 : 1) {
          const auto row = static_cast<std::size_t>(b);
          const KvPool pool = gpt.make_pool(1);
          PagedCache cache{.pool = &pool, .blocks = {0}, .adapter = chosen[row]};
          PagedCache* const one = &cache;
          const std::int64_t prompt = b % 4 + 1;
          EXPECT_TRUE(gpt.forward(tokens.narrow(0, b, 1).narrow(1, 0, prompt), cache)[0].equal(got[row][0])) << called;
          for (std::int64_t i = 0; i < kSteps; ++i) {
            const at::Tensor after = gpt.step(tokens[b].narrow(0, prompt + i, 1), {&one, 1});
            EXPECT_TRUE(after[0].equal(got[row][static_cast<std::size_t>(i + 1)]))
                << called << ", " << dtype << ", sequence " << b << ", step " << i;
          }
        }
      });
}

TEST(KeptAdaptersOfBlocks, AddToWhatTheBlocksStandFor) {
  TransformerOptions model = megatron::testing::small();
  model.shape.hidden = 128;
  model.shape.ffn_hidden = 192;
  const auto weights = random_weights(model.shape, 4);
  const plan::StageSpec part = plan::whole_model(model.shape.num_layers);
  for (const plan::Lora& lora : loras()) {
    const WholeAdapter adapter = random_adapter(model.shape, 20, lora);
    auto specs = plan::model_parameters(model.shape, 1, 0);
    std::vector<plan::ParameterSpec> matrices;
    std::erase_if(specs, [&](const plan::ParameterSpec& spec) {
      if (plan::fits_blocks(spec)) matrices.push_back(spec);
      return plan::fits_blocks(spec);
    });
    parallel::ParameterStore store(specs, plan::buffer_layout(specs, 0), at::kFloat, at::kCPU, 1,
                                   parallel::ParameterStore::Gradients::None);
    Tensors widened;
    for (const auto& parameter : store.all()) {
      parameter->value.copy_(weights.at(parameter->spec.name).detach());
      widened[parameter->spec.name] = weights.at(parameter->spec.name).detach();
    }
    for (const plan::ParameterSpec& spec : matrices) {
      const auto blocks = std::make_shared<const kernels::QuantizedMatrix>(
          kernels::quantize(weights.at(spec.name).detach().to(at::kFloat).contiguous(), GgufType::Q8_0, spec.name));
      widened[spec.name] = blocks->widened(at::kDouble);
      store.add_in_blocks(spec, GgufType::Q8_0);
      store.get(spec.name)->packed.replace(blocks);
    }
    TransformerOptions beside = model;
    beside.kept = kept(model.shape, part, {}, {adapter}, at::kFloat);
    const auto truth = make_store(model.shape, 1, 0, merged(model.shape, widened, adapter));
    const auto tokens = random_batch(10).tokens_bs;
    const auto got = written(CachedGpt(beside, store, {}), tokens, {1, 1}, kSteps),
               want = written(CachedGpt(model, truth, {}), tokens, {0, 0}, kSteps),
               base = written(CachedGpt(beside, store, {}), tokens, {0, 0}, kSteps);
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t i = 0; i < want[b].size(); ++i) {  // products round their inputs to 8 bits
        EXPECT_NEAR_TENSOR(got[b][i], want[b][i], 0.1) << "dora " << lora.dora << ", " << b << ", " << i;
        EXPECT_GT(megatron::testing::relative_error(base[b][i], want[b][i]), 0.3) << "dora " << lora.dora;
      }
  }
}

}  // namespace
}  // namespace megatron::model
