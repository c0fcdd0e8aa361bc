#include "megatron/generate/speculate.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <optional>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/plan/stages.h"
#include "tests/generate/small_model.h"
#include "tests/testing/dense_model.h"

namespace megatron::generate {
namespace {

using megatron::testing::make_store;
using megatron::testing::random_weights;
using megatron::testing::Tensors;
using DraftedTexts = std::vector<std::vector<std::int64_t>>;

constexpr std::int64_t kDraftDepths = 3;
const DraftedTexts kDraftedPrompts = {{3, 14, 15, 9, 2}, {6}, {5, 3, 5}, {6}, {8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 3}};

/// With Llama's positions, GPT-2's, or DeepSeek's attention.
enum class Drafting : std::uint8_t { Rotary, Learned, Latents };

model::TransformerOptions drafting_model(Drafting kind = Drafting::Rotary) {
  model::TransformerOptions options = small_model();
  options.shape.mtp_depths = kDraftDepths;
  options.shape.max_positions = 24;
  options.shape.learned_positions = kind == Drafting::Learned;
  if (kind == Drafting::Learned) return options;
  options.rope = {.rotary_dim = 4, .base = 50};
  if (kind == Drafting::Rotary) return options;
  options.shape.latents = plan::Latents{.q_rank = 6, .kv_rank = 8, .nope = 4, .rope = 2, .value = 6};
  options.shape.num_groups = 4;
  options.shape.head_size = options.shape.latents->head_size();
  options.shape.attention_scale = 0.4;
  options.shape.attention.qk_layernorm = options.shape.rms_norm = options.shape.gated = true;
  options.shape.linear_bias = false;
  options.rope = {.rotary_dim = 2, .base = 50, .interleaved = true};
  return options;
}

struct DraftedResult {
  DraftedTexts texts;
  Speculation counts;
};

/// `tokens`: drafted at a time; below 0: none, by generate().
DraftedResult written_by(const Tensors& weights, const GenerateOptions& options, std::int64_t tokens, int t = 1,
                         int stages = 1, Drafting kind = Drafting::Rotary) {
  const model::TransformerOptions model = drafting_model(kind);
  DraftedResult result;
  const auto layers = stages == 1 ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>{2, 0};
  const auto parts = plan::parts_of_layers(layers);
  comm::run_ranks(t * stages, [&](const comm::Group& world) {
    const int stage = world.rank() / t;
    std::vector<std::vector<int>> same_stage, same_slice(static_cast<std::size_t>(t));
    for (int s = 0; s < stages; ++s) {
      same_stage.emplace_back();
      for (int k = 0; k < t; ++k) {
        same_stage.back().push_back(s * t + k);
        same_slice[static_cast<std::size_t>(k)].push_back(s * t + k);
      }
    }
    const comm::Group tp = world.split(same_stage), pp = world.split(same_slice);
    const plan::StageSpec& part = parts[static_cast<std::size_t>(stage)];
    const auto store = make_store(model.shape, t, tp.rank(), weights, at::kDouble, 1234, at::kCPU, {part});
    const StagedModel gpt(model::CachedGpt(model, part, store, tp), pp, at::TensorOptions(at::kDouble));
    std::optional<model::Drafter> drafter;
    if (part.output) drafter.emplace(model, part, store, tp);
    Speculation counts;
    DraftedTexts texts = tokens < 0
                             ? generate(gpt, kDraftedPrompts, options)
                             : speculate(gpt, drafter ? &*drafter : nullptr, tokens, kDraftedPrompts, options, counts);
    if (world.rank() == 0) result = {std::move(texts), counts};
  });
  return result;
}

/// Of the longest prompt and the 12 tokens that have room behind it, in float64.
TEST(Speculate, SaysWhatItsTextsTake) {
  const auto bytes = [](Drafting kind, int tp) {
    return largest_text_bytes(kDraftedPrompts, {.max_new_tokens = 100}, drafting_model(kind).shape, 8, tp);
  };
  const plan::ModelShape shape = drafting_model().shape;
  const std::int64_t layers = shape.num_layers, h = shape.hidden, keys = shape.groups() * shape.head();
  const std::int64_t logits = (1 + kDraftDepths) * shape.padded_vocab * 12;
  EXPECT_EQ(bytes(Drafting::Rotary, 1), 24 * 8 * (layers * 2 * keys + kDraftDepths * (2 * keys + h)) + logits);
  EXPECT_EQ(bytes(Drafting::Latents, 2), 24 * 8 * 2 * (layers * (8 + 2) + kDraftDepths * (8 + 2 + h)) + logits);
}

TEST(Speculate, GivesTheTextsOfPlainDecodingWhateverIsDrafted) {
  const Tensors weights = random_weights(drafting_model().shape, 4);
  for (const double temperature : {0.0, 0.3, 1.0}) {
    GenerateOptions options{.max_new_tokens = 15, .sampling = {.temperature = temperature}, .seed = 3};
    const DraftedResult plain = written_by(weights, options, -1);
    ASSERT_EQ(plain.texts[0].size(), 15U);
    options.ends = {plain.texts[0][6]};  // in the middle of it
    const DraftedResult ended = written_by(weights, options, -1);
    for (std::int64_t tokens = 0; tokens <= kDraftDepths; ++tokens) {
      options.ends = {};
      const DraftedResult got = written_by(weights, options, tokens);
      EXPECT_EQ(got.texts, plain.texts) << tokens << " drafts, temperature " << temperature;
      std::int64_t written = 0;
      for (const auto& text : got.texts) written += std::ssize(text);
      EXPECT_EQ(written, std::ssize(kDraftedPrompts) + got.counts.passes + got.counts.accepted_tokens);
      EXPECT_LE(got.counts.accepted_tokens, got.counts.draft_tokens);
      options.ends = {plain.texts[0][6]};
      EXPECT_EQ(written_by(weights, options, tokens).texts, ended.texts);
    }
  }
}

TEST(Speculate, DoesSoOnRanksThatShareLayersAndOnStages) {
  const Tensors weights = random_weights(drafting_model().shape, 4);
  const GenerateOptions options{.max_new_tokens = 15, .sampling = {.temperature = 0}};
  const DraftedResult one = written_by(weights, options, kDraftDepths);
  for (const auto& [t, stages] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    const DraftedResult many = written_by(weights, options, kDraftDepths, t, stages);
    EXPECT_EQ(many.texts, one.texts) << "tp " << t << ", " << stages << " stages";
    EXPECT_EQ(many.counts.accepted_tokens, one.counts.accepted_tokens);
    EXPECT_EQ(many.counts.passes, one.counts.passes);
  }
}

TEST(Speculate, DoesSoFromCachedLatentsAndWithLearnedPositions) {
  for (const auto& [kind, temperature] : {std::pair{Drafting::Latents, 0.5}, {Drafting::Learned, 0.0}}) {
    const Tensors weights = random_weights(drafting_model(kind).shape, 4);
    const GenerateOptions options{.max_new_tokens = 15, .sampling = {.temperature = temperature}};
    const DraftedResult plain = written_by(weights, options, -1, 1, 1, kind);
    for (const auto& [t, stages] : {std::pair{1, 1}, {2, 1}, {1, 2}})
      EXPECT_EQ(written_by(weights, options, kDraftDepths, t, stages, kind).texts, plain.texts);
  }
}

/// Of logits that are all equal the first token is the likeliest: every depth drafts what the model draws.
TEST(Speculate, AcceptsEveryDraftOfDepthsThatAgreeWithTheModel) {
  Tensors weights = random_weights(drafting_model().shape, 4);
  for (auto& [name, value] : weights)
    if (name.find("final_layernorm") != std::string::npos) value = at::zeros_like(value);
  const GenerateOptions options{.max_new_tokens = 9, .sampling = {.temperature = 0}};
  const DraftedResult got = written_by(weights, options, kDraftDepths);
  EXPECT_EQ(got.texts[0], std::vector<std::int64_t>(9, 0));
  EXPECT_EQ(got.counts.accepted_rate(), 1);
  EXPECT_EQ(got.counts.passes, 5 * 2) << "of each text one token by the prompt, and eight in passes of four";
}

/// A depth that has read a text in pieces, drafts between them, drafts as one that reads it at once.
class DrafterOf : public ::testing::TestWithParam<Drafting> {};
INSTANTIATE_TEST_SUITE_P(Kinds, DrafterOf, ::testing::Values(Drafting::Rotary, Drafting::Learned, Drafting::Latents));

TEST_P(DrafterOf, DraftsWhatTheTextSaysWhateverWasDraftedBefore) {
  const model::TransformerOptions model = drafting_model(GetParam());
  const auto store = make_store(model.shape, 1, 0, random_weights(model.shape, 4));
  const plan::StageSpec whole = plan::whole_model(model.shape.num_layers);
  const model::CachedGpt gpt(model, whole, store, {});
  const std::vector<std::int64_t> text = {3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9, 7};
  model::KvCache cache = gpt.make_cache(1, 12);
  at::Tensor states;
  gpt.forward(at::tensor(text, at::kLong).unsqueeze(0), cache, &states);
  model::Drafter pieces(model, whole, store, {}), at_once(model, whole, store, {});
  pieces.begin(12);
  for (const std::int64_t known : {1, 2, 5, 6, 11}) {
    pieces.see(states.narrow(0, 0, known), 0);
    at_once.begin(12);
    at_once.see(states.narrow(0, 0, known), 0);
    const std::span<const std::int64_t> seen(text.data(), static_cast<std::size_t>(known) + 1);
    EXPECT_EQ(pieces.draft(seen, kDraftDepths), at_once.draft(seen, kDraftDepths)) << known;
  }
}

}  // namespace
}  // namespace megatron::generate
