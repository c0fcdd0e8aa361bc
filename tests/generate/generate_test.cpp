#include "megatron/generate/generate.h"

#include <gmock/gmock.h>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/model/transformer_stage.h"
#include "tests/generate/small_model.h"
#include "tests/testing/dense_model.h"

namespace megatron::generate {
namespace {

using megatron::testing::make_store;
using megatron::testing::random_weights;
using Texts = std::vector<std::vector<std::int64_t>>;

const model::TransformerOptions kOptions = small_model();

Texts run(const Texts& prompts, const GenerateOptions& options, int t = 1, const OnToken& on_token = {}) {
  const auto weights = random_weights(kOptions.shape, 4);
  Texts result;
  comm::run_ranks(t, [&](comm::Group tp) {
    const auto store = make_store(kOptions.shape, t, tp.rank(), weights);
    const StagedModel gpt(model::CachedGpt(kOptions, store, tp));
    auto texts = generate(gpt, prompts, options, tp.rank() == 0 ? on_token : OnToken());
    if (tp.rank() == 0) result = std::move(texts);
  });
  return result;
}

/// Without cache and batch: the whole text through the model for each token.
std::vector<std::int64_t> one_by_one(std::vector<std::int64_t> text, const GenerateOptions& options) {
  const Draws draws(options.seed, text, 0);
  const auto store = make_store(kOptions.shape, 1, 0, random_weights(kOptions.shape, 4));
  const model::TransformerStage gpt(kOptions, store, {});
  std::vector<std::int64_t> added;
  while (static_cast<std::int64_t>(added.size()) < options.max_new_tokens && text.size() < 12) {
    model::Batch batch;
    batch.tokens_bs = at::tensor(text, at::kLong).unsqueeze(0);
    const auto last = gpt.logits(batch)[0][static_cast<std::int64_t>(text.size()) - 1].contiguous();
    added.push_back(sample({last.const_data_ptr<double>(), 30}, options.sampling,
                           draws.at(static_cast<std::int64_t>(text.size()))));
    text.push_back(added.back());
    if (std::ranges::count(options.ends, added.back()) > 0) break;
  }
  return added;
}

const Texts kPrompts = {{3, 14, 15, 9, 2}, {6}, {5, 3, 5}, {8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2}};

TEST(Generate, GivesEachPromptOfABatchWhatItWouldGiveAloneWithoutACache) {
  for (const double temperature : {0.0, 1.0}) {
    const GenerateOptions options{.max_new_tokens = 8, .sampling = {.temperature = temperature}, .seed = 3};
    const auto texts = run(kPrompts, options);
    for (std::size_t i = 0; i < kPrompts.size(); ++i) EXPECT_EQ(texts[i], one_by_one(kPrompts[i], options)) << i;
  }
}

TEST(Generate, SaysWhatItsCachesTake) {
  const auto store = make_store(kOptions.shape, 1, 0, random_weights(kOptions.shape, 4));
  const model::CachedGpt gpt(kOptions, store, {});
  const auto cache = gpt.make_cache(4, 11 + 7);  // of the longest prompt and what the shortest one may get
  std::int64_t bytes = 4 * kOptions.shape.padded_vocab * std::int64_t{4 + 8};
  for (const auto* tensors : {&cache.keys, &cache.values})
    for (const at::Tensor& tensor : *tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  GenerateOptions options{.max_new_tokens = 7};
  EXPECT_EQ(largest_group_bytes(kPrompts, options, kOptions.shape, 8), bytes);
  options.group_bytes = 1;  // one after another: the longest alone has room for a single token
  EXPECT_LT(largest_group_bytes(kPrompts, options, kOptions.shape, 8), bytes / 3);
  options.max_new_tokens = 0;
  EXPECT_EQ(largest_group_bytes(kPrompts, options, kOptions.shape, 8), 0);
}

// Two of four ranks share a head of two; of latents each rank has what makes all heads (DeepSeek-AI 2024, table 1).
TEST(Generate, CountsWhatEachRankKeepsOfAPosition) {
  plan::ModelShape shape = kOptions.shape;
  shape.num_heads = 8;
  shape.num_groups = 2;
  EXPECT_EQ(numbers_of_row(shape, 1), shape.num_layers * 2 * 2 * shape.head());
  EXPECT_EQ(numbers_of_row(shape, 4), shape.num_layers * 4 * 2 * shape.head());
  shape.latents = plan::Latents{.kv_rank = 6, .nope = 4, .rope = 2, .value = 4};
  EXPECT_EQ(numbers_of_row(shape, 4), shape.num_layers * 4 * (6 + 2));
}

TEST(Generate, GivesAPromptTheSameTextAloneAndInAnyPlaceOfABatch) {
  const GenerateOptions options{.max_new_tokens = 7, .sampling = {.temperature = 1.5}, .seed = 8};
  const auto batch = run(kPrompts, options);
  const auto reversed = run({kPrompts.rbegin(), kPrompts.rend()}, options);
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    EXPECT_EQ(run({kPrompts[i]}, options), Texts{batch[i]}) << i;
    EXPECT_EQ(reversed[kPrompts.size() - 1 - i], batch[i]) << i;
  }
}

TEST(Generate, GivesCopiesOfAPromptTextsOfTheirOwnAndTheFirstWhatItGivesAlone) {
  const GenerateOptions options{.max_new_tokens = 9, .sampling = {.temperature = 1.5}};
  const auto texts = run({{6}, {7}, {6}}, options);
  EXPECT_NE(texts[0], texts[2]);
  EXPECT_EQ(run({{6}}, options), Texts{texts[0]});
}

TEST(Generate, GivesTheSameInGroupsOfAnySizeWithTokensToldByPrompt) {
  GenerateOptions options{.max_new_tokens = 6, .sampling = {.temperature = 1.5}};
  const Texts prompts = {{3, 14, 15, 9, 2}, {6}, std::vector<std::int64_t>(12, 1), {6}, {5, 3, 5}, {6}};
  const auto together = run(prompts, options);
  // One row of keys and values is 2 layers x 2 x 16 floats, the logits of a text 32 x 12 bytes.
  for (const std::int64_t bytes : {1, 2 * (7 * 256 + 384), 3 * (11 * 256 + 384)}) {
    options.group_bytes = bytes;
    Texts told(prompts.size());
    std::size_t last = 0, changes = 0;
    EXPECT_EQ(run(prompts, options, 2,
                  [&](std::size_t prompt, std::int64_t token) {
                    told[prompt].push_back(token);
                    changes += prompt < last ? 1 : 0;
                    last = prompt;
                  }),
              together)
        << bytes;
    EXPECT_EQ(told, together) << bytes;
    EXPECT_EQ(changes == 0, bytes == 1) << bytes;  // one at a time: no prompt is returned to
  }
}

// The first stage of a pipeline "E|t*2L" has no keys whose device would be that of the tokens.
TEST(StagedModel, HasTheDeviceOfItsParametersWithoutLayersToo) {
  const plan::StageSpec embedding{.num_layers = 0, .embedding = true, .output = false};
  const auto store =
      make_store(kOptions.shape, 1, 0, random_weights(kOptions.shape, 4), at::kFloat, 1234, at::kMeta, {embedding});
  const StagedModel stage(model::CachedGpt(kOptions, embedding, store, {}), {}, store.options());
  EXPECT_TRUE(stage.make_cache(1, 12).keys.empty());
  EXPECT_EQ(stage.device(), at::kMeta);
}

TEST(Generate, SaysWhereLogitsAreNotFinite) {
  auto weights = random_weights(kOptions.shape, 4);
  weights.at("decoder.final_layernorm.bias").detach()[3] = std::nan("");
  const auto store = make_store(kOptions.shape, 1, 0, weights);
  const StagedModel gpt(model::CachedGpt(kOptions, store, {}));
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_THAT(
        [&] {
          generate(gpt, {{3, 14, 15}}, {.sampling = {.temperature = temperature}});
        },
        ::testing::ThrowsMessage<std::runtime_error>(::testing::HasSubstr("logits are not finite at position 3")));
  }
}

TEST(Generate, SaysWhereLogitsOfTheGraphOfATokenAreNotFinite) {
  auto weights = random_weights(kOptions.shape, 4);
  weights.at("embedding.position_embeddings.weight").detach()[4].fill_(std::nan(""));
  const auto store = make_store(kOptions.shape, 1, 0, weights);
  const StagedModel gpt(model::CachedGpt(kOptions, store, {}));
  kernels::force_instruction_set(kernels::kCudaEmulated);
  for (const SamplingOptions& sampling : {SamplingOptions{.temperature = 0}, {}, {.top_k = 3}}) {
    EXPECT_THAT(
        [&] {
          generate(gpt, {{3, 14, 15}, {2}}, {.sampling = sampling});
        },
        ::testing::ThrowsMessage<std::runtime_error>(::testing::HasSubstr("logits are not finite at position 5")));
  }
  kernels::force_instruction_set("auto");
}

TEST(Generate, GivesTheSameOnAnyNumberOfRanks) {
  const GenerateOptions options{.max_new_tokens = 6, .sampling = {.temperature = 0.8, .top_k = 9, .top_p = 0.9}};
  const auto alone = run(kPrompts, options);
  EXPECT_EQ(run(kPrompts, options, 2), alone);
  EXPECT_EQ(run(kPrompts, options, 4), alone);
  auto other = options;
  other.seed = 5;
  EXPECT_NE(run(kPrompts, other), alone);
}

TEST(Generate, GivesTheSameThroughAPipeline) {
  const GenerateOptions options{.max_new_tokens = 6, .sampling = {.temperature = 0.8, .top_k = 9}};
  const auto weights = random_weights(kOptions.shape, 4);
  const auto alone = run(kPrompts, options);
  comm::run_ranks(2, [&](comm::Group pp) {
    const auto store = make_store(kOptions.shape, 1, 0, weights);
    const auto part = plan::parts_of_layers({1, 1})[static_cast<std::size_t>(pp.rank())];
    const StagedModel gpt(model::CachedGpt(kOptions, part, store, {}), pp, at::TensorOptions(at::kDouble));
    EXPECT_EQ(generate(gpt, kPrompts, options), alone) << "stage " << pp.rank();
  });
}

/// run() where CUDA is emulated: tokens come from the graph of one (model/decoding/token_graph.h).
Texts run_by_graph(const Texts& prompts, const GenerateOptions& options) {
  kernels::force_instruction_set(kernels::kCudaEmulated);
  auto texts = run(prompts, options);
  kernels::force_instruction_set("auto");
  return texts;
}

TEST(Generate, GivesTheSameByTheGraphOfAToken) {
  const Texts prompts = {{3, 14, 15, 9, 2}, {6}, {5, 3, 5}, {8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2}, {6}, {7, 7}};
  // The device chooses or draws, or all logits are drawn from, or what the device lists of them.
  for (const SamplingOptions& sampling : {SamplingOptions{.temperature = 0},
                                          {},
                                          {.temperature = 2, .min_p = 0.2},
                                          {.temperature = 1.5, .top_k = 5},
                                          {.top_k = 300},
                                          {.top_p = 0.8},
                                          {.temperature = 0.7, .top_k = 12, .top_p = 0.9, .min_p = 0.05}}) {
    GenerateOptions options{.max_new_tokens = 9, .sampling = sampling, .seed = 3};
    const auto texts = run(prompts, options);
    EXPECT_EQ(run_by_graph(prompts, options), texts);
    options.ends = {texts[0][2], texts[1][1], texts[5][4]};  // rows end one by one, and leave when they are the half
    EXPECT_EQ(run_by_graph(prompts, options), run(prompts, options));
    std::size_t heard = 0;
    options.on_logits = [&](std::size_t, std::span<const double> logits, std::int64_t token) {
      heard += logits.size() == 30 && token >= 0 ? 1 : 0;
    };
    std::size_t tokens = 0;
    for (const auto& text : run_by_graph(prompts, options)) tokens += text.size();
    EXPECT_EQ(heard, tokens);
  }
}

TEST(Generate, StopsAtTheEndOfTextAndGoesOnWithTheOthers) {
  GenerateOptions options{.max_new_tokens = 7, .sampling = {.temperature = 1}};
  const auto endless = run(kPrompts, options);
  options.ends = {endless[0][2], endless[1][1]};
  const auto texts = run(kPrompts, options);
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    auto expected = endless[i];
    const auto end = std::ranges::find_first_of(expected, options.ends);
    if (end != expected.end()) expected.erase(end + 1, expected.end());
    EXPECT_EQ(texts[i], expected) << i;
  }
  EXPECT_LE(texts[0].size(), 3u);
}

TEST(Generate, StopsWhereTheContextIsFull) {
  const auto texts = run(kPrompts, {.max_new_tokens = 100, .sampling = {.temperature = 0}});
  for (std::size_t i = 0; i < kPrompts.size(); ++i) EXPECT_EQ(kPrompts[i].size() + texts[i].size(), 12u) << i;
}

TEST(Generate, TellsOfEveryTokenInOrder) {
  Texts streamed(kPrompts.size());
  const auto texts = run(kPrompts, {.max_new_tokens = 5, .sampling = {.temperature = 1}}, 1,
                         [&](std::size_t prompt, std::int64_t token) { streamed[prompt].push_back(token); });
  EXPECT_EQ(streamed, texts);
}

TEST(Generate, RefusesAPromptLongerThanTheContextWithBothNumbers) {
  try {
    run({{1}, std::vector<std::int64_t>(13, 1)}, {});
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), ::testing::AllOf(::testing::HasSubstr("12 tokens"), ::testing::HasSubstr("prompt 1 has 13")));
  }
  EXPECT_THROW(run({{}}, {}), ConfigError);
  EXPECT_THROW(run({{1}}, {.max_new_tokens = -1}), ConfigError);
  EXPECT_EQ(run({std::vector<std::int64_t>(12, 1)}, {}), Texts{{}});
}

}  // namespace
}  // namespace megatron::generate
