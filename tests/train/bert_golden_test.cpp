#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>

#include "megatron/base/files/file.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/families/hf_family.h"
#include "megatron/interchange/hugging_face/hugging_face.h"
#include "megatron/model/options.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/plan/rules.h"
#include "tests/testing/dense_model.h"
#include "tests/testing/folders.h"

// BERTs of two other programs in float32: Megatron-Core's, which normalizes before each branch, and transformers',
// which does so after the residual sum. Both are the same blocks here.
namespace megatron::train {
namespace {

namespace fs = std::filesystem;
using megatron::testing::read_safetensors;
using megatron::testing::slice_of;
using megatron::testing::Tensors;

constexpr double kTolerance = 1e-5;
const fs::path kGolden = fs::path(unpacked_folder()) / "golden/models";

struct Layout {
  int tp;
  bool sp;
};

/// The global batch's loss by its two means, and what the gradients are divided by.
struct Losses {
  double lm = 0, sop = 0, tokens = 0;
};

Losses go_backward(const model::TransformerStage& bert, const model::Batch& batch) {
  const double tokens = batch.loss_mask_bs.sum().item<double>();
  const auto samples = static_cast<double>(batch.sentence_labels_b.numel());
  const auto loss = bert.loss({}, batch, true, 1, tokens / samples);
  EXPECT_EQ(loss.count, tokens);
  EXPECT_EQ(loss.sentences, samples);
  loss.sum.backward();
  const double sop = loss.sentence_sum.item<double>() / samples;
  return {loss.sum.item<double>() / tokens - sop, sop, tokens};
}

/// The gradient of the mean loss, with what ranks have of it in parts added. Collective over tp.
at::Tensor gradient_of(const parallel::Parameter& parameter, const Layout& layout, double tokens,
                       const comm::Group& tp) {
  auto gradient = parameter.grad.clone();
  if (layout.sp && parameter.spec.sequence_partial) tp.all_reduce(gradient);
  return gradient / tokens;
}

void expect_close(const at::Tensor& got, const at::Tensor& wanted, const std::string& what,
                  double tolerance = kTolerance) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  EXPECT_LE((got - wanted).abs().max().item<double>(), tolerance) << what;
}

class BertGolden : public ::testing::TestWithParam<Layout> {};

TEST_P(BertGolden, IsMegatronCoresBert) {
  const fs::path folder = fs::path(unpacked_folder()) / "golden/megatron/model/bert";
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const Tensors data = read_safetensors(folder / "batch.safetensors"),
                outputs = read_safetensors(folder / "outputs.safetensors"),
                gradients = read_safetensors(folder / "grads.safetensors"),
                weights = read_safetensors(folder / "weights.safetensors");
  model::TransformerOptions options;
  options.shape = {.num_layers = 2,
                   .hidden = 32,
                   .num_heads = 4,
                   .ffn_hidden = 96,
                   .vocab = 160,
                   .padded_vocab = 160,
                   .max_positions = 32,
                   .causal = false,
                   .token_types = 2,
                   .sentence_head = true,
                   .masked_lm_head = true};
  options.sequence_parallel = GetParam().sp;
  comm::run_ranks(GetParam().tp, [&](const comm::Group& tp) {
    model::Batch batch;
    batch.tokens_bs = data.at("text");
    batch.labels_bs = data.at("labels");
    batch.loss_mask_bs = data.at("loss_mask").to(at::kFloat);
    batch.token_types_bs = data.at("types");
    batch.key_lengths_b = data.at("padding_mask").sum(1).to(at::kInt);
    batch.sentence_labels_b = data.at("is_random");
    const auto store = testing::make_store(options.shape, tp.size(), tp.rank(), weights, at::kFloat);
    const model::TransformerStage bert(options, store, tp);
    // What a padded token sees there is of no use: it sees all.
    const auto seen = data.at("padding_mask").unsqueeze(2).to(at::kFloat);
    expect_close(bert.logits(batch) * seen, outputs.at("logits") * seen, "logits");
    const auto states = bert.states({}, batch, false);
    expect_close(bert.heads().sentence_logits(bert.heads().pooled(states)).detach(), outputs.at("binary_logits"),
                 "binary logits");
    const Losses losses = go_backward(bert, batch);
    EXPECT_NEAR(losses.lm, outputs.at("lm_loss").item<double>(), kTolerance);
    EXPECT_NEAR(losses.sop, outputs.at("sop_loss").item<double>(), kTolerance);
    ASSERT_EQ(store.all().size(), gradients.size());
    for (const auto& p : store.all())
      expect_close(gradient_of(*p, GetParam(), losses.tokens, tp), slice_of(gradients.at(p->spec.name), p->spec),
                   p->spec.name);
  });
}

/// Where one of their tensors lies in ours, and what it is there.
at::Tensor piece_of(const at::Tensor& ours, const families::MappedSlice& piece) {
  auto part = ours;
  for (std::size_t d = 0; d < piece.shape.size(); ++d)
    part = part.narrow(static_cast<std::int64_t>(d), piece.to[d], piece.shape[d]);
  return part;
}

/// A folder of transformers in float32, on one rank.
struct Loaded {
  plan::ResolvedRun run;
  parallel::ParameterStore store;
  model::TransformerStage bert;

  /// Sequences of `length` tokens.
  Loaded(const fs::path& folder, std::int64_t length, bool strict = true)
      : run(resolved(folder, length)),
        store(testing::make_store(run.shape, 1, 0, {}, at::kFloat)),
        bert(model::transformer_options(run.config, run.shape), store, {}) {
    checkpoint::load_weights(*interchange::open_hugging_face(folder), store, run.shape, strict);
  }

  static plan::ResolvedRun resolved(const fs::path& folder, std::int64_t length) {
    config::RunConfig config;
    config.model = interchange::read_config(folder).model;
    config.data.seq_length = length;
    return plan::resolve(config);
  }
  /// [b, s, h]
  at::Tensor states(const model::Batch& batch) const { return bert.states({}, batch, false).detach().transpose(0, 1); }
  at::Tensor sentence_logits(const model::Batch& batch) const {
    return bert.heads().sentence_logits(bert.heads().pooled(bert.states({}, batch, false))).detach();
  }
  /// As it was computed there: without dropout.
  Losses losses(const model::Batch& batch) const {
    auto options = model::transformer_options(run.config, run.shape);
    options.hidden_dropout = options.attention_dropout = 0;
    return go_backward(model::TransformerStage(options, store, {}), batch);
  }
};

model::Batch inputs_of(const Tensors& expected) {
  const auto labels = expected.at("input.labels");
  model::Batch batch;
  batch.tokens_bs = expected.at("input.input_ids");
  batch.labels_bs = labels;
  batch.loss_mask_bs = labels.ge(0).to(at::kFloat);
  batch.token_types_bs = expected.at("input.token_type_ids");
  batch.key_lengths_b = expected.at("input.attention_mask").sum(1).to(at::kInt);
  batch.sentence_labels_b = expected.at("input.next_sentence_label");
  return batch;
}

TEST(BertGoldenFolder, IsTheBertOfTransformers) {
  const fs::path folder = kGolden / "tiny_bert";
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const Tensors expected = read_safetensors(folder / "expected.safetensors");
  const Loaded loaded(folder, expected.at("input.input_ids").size(1));
  const auto& [run, store, bert] = loaded;
  const model::Batch batch = inputs_of(expected);
  expect_close(bert.logits(batch), expected.at("output.prediction_logits"), "logits");
  expect_close(loaded.sentence_logits(batch), expected.at("output.seq_relationship_logits"), "sentence logits");
  const Losses losses = loaded.losses(batch);
  EXPECT_NEAR(losses.lm, expected.at("output.masked_token_loss").item<double>(), kTolerance);
  EXPECT_NEAR(losses.sop, expected.at("output.sentence_order_loss").item<double>(), kTolerance);
  std::ifstream file(folder / "expected.json");
  const auto norms = nlohmann::json::parse(file)["grad_norm_by_parameter"];
  std::set<std::string> compared;
  std::size_t in_full = 0;
  const auto all = [](const std::string&) { return true; };
  for (const auto& [name, tensor] : families::hf_family("bert").written_table(run.shape, all)) {
    const auto gradient = store.get(name)->grad / losses.tokens;
    std::map<std::string, double> squares;
    for (const families::MappedSlice& piece : tensor.pieces) {
      const auto part = piece_of(gradient, piece);
      squares[piece.source] += std::pow(part.norm().item<double>(), 2);
      const auto whole = expected.find("grad." + piece.source);
      if (whole == expected.end()) continue;
      families::MappedSlice there = piece;
      there.to = piece.from;
      expect_close(part, piece_of(whole->second, there), piece.source);
      in_full += compared.contains("grad." + piece.source) ? 0 : 1;
      compared.insert("grad." + piece.source);
    }
    for (const auto& [source, square] : squares) {
      const double norm = norms.at(source).get<double>();
      EXPECT_NEAR(std::sqrt(square), norm, kTolerance * (1 + norm)) << source;
      compared.insert(source);
    }
  }
  EXPECT_EQ(in_full, 8u);
  EXPECT_EQ(compared.size(), norms.size() + in_full);
}

/// The folder of a real model, where it is.
fs::path trained(const char* name) {
  const char* const named = std::getenv("MEGATRON_MODELS");
  return (named != nullptr ? fs::path(named) : fs::path(tests_folder()) / "../.cache/models") / name;
}

TEST(TrainedBert, WithBothHeadsHasTheReferenceLossAndGradients) {
  const fs::path folder = trained("rxn-bert");
  if (!fs::exists(folder) || !fs::exists(kGolden)) GTEST_SKIP() << folder << " or " << kGolden << " is not there";
  const Tensors expected = read_safetensors(kGolden / "rxn_bert.safetensors");
  const auto report = nlohmann::json::parse(read_file(kGolden / "rxn_bert.json"));
  const Loaded loaded(folder, 512);
  const model::Batch batch = inputs_of(expected);
  // Twelve trained layers: the reference itself is 3e-5 from its float64 model.
  const auto seen = expected.at("input.attention_mask").unsqueeze(2).to(at::kFloat);
  expect_close(loaded.bert.logits(batch) * seen, expected.at("output.prediction_logits") * seen, "logits", 1e-4);
  expect_close(loaded.sentence_logits(batch), expected.at("output.seq_relationship_logits"), "sentence logits", 1e-4);
  const Losses losses = loaded.losses(batch);
  EXPECT_NEAR(losses.lm + losses.sop, report["loss"].get<double>(), 1e-4);
  double square = 0;
  for (const auto& p : loaded.store.all()) square += std::pow((p->grad / losses.tokens).norm().item<double>(), 2);
  EXPECT_NEAR(std::sqrt(square) / report["grad_norm"].get<double>(), 1, 1e-5);
}

TEST(TrainedBert, WithoutHeadsHasTheReferenceStatesOfPaddedSentencesAndOfAPair) {
  const fs::path folder = trained("minilm-l6");
  if (!fs::exists(folder) || !fs::exists(kGolden)) GTEST_SKIP() << folder << " or " << kGolden << " is not there";
  const Tensors expected = read_safetensors(kGolden / "minilm_hidden.safetensors");
  const auto report = nlohmann::json::parse(read_file(kGolden / "minilm.json"));
  const Loaded loaded(folder, 512, /*strict=*/false);
  const auto pooled = [&](const at::Tensor& states) {
    return loaded.bert.heads().pooled(states.transpose(0, 1)).detach();
  };

  const auto mask = expected.at("attention_mask").unsqueeze(2).to(at::kFloat);
  model::Batch sentences;
  sentences.tokens_bs = expected.at("input_ids");
  sentences.token_types_bs = expected.at("token_type_ids");
  sentences.key_lengths_b = expected.at("attention_mask").sum(1).to(at::kInt);
  const auto states = loaded.states(sentences);
  expect_close(states * mask, expected.at("last_hidden_state") * mask, "states");
  expect_close(pooled(states), expected.at("pooler_output"), "pooled");
  const auto mean = (states * mask).sum(1) / mask.sum(1);
  const auto embedding = mean / mean.norm(2, 1, true);
  expect_close(embedding, expected.at("sentence_embedding"), "embeddings");
  const auto cosines = embedding.matmul(embedding.t());
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 3; ++j)
      EXPECT_NEAR(cosines[i][j].item<double>(), report["cosines"][i][j].get<double>(), 2e-6) << i << ", " << j;

  model::Batch pair;
  pair.tokens_bs = expected.at("pair.input_ids");
  pair.token_types_bs = expected.at("pair.token_type_ids");
  const auto pair_states = loaded.states(pair);
  expect_close(pair_states, expected.at("pair.last_hidden_state"), "states of the pair");
  expect_close(pooled(pair_states), expected.at("pair.pooler_output"), "pooled pair");
}

INSTANTIATE_TEST_SUITE_P(Layouts, BertGolden, ::testing::Values(Layout{1, false}, Layout{2, false}, Layout{2, true}),
                         [](const auto& test) {
                           return "tp" + std::to_string(test.param.tp) + (test.param.sp ? "_sp" : "");
                         });

}  // namespace
}  // namespace megatron::train
