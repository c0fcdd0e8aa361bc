#include <gtest/gtest.h>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/model/transformer_stage.h"
#include "tests/testing/dense_model.h"
#include "tests/testing/folders.h"

// Megatron-Core's own results on CPU in float32: what our names, layouts and formulas have to mean.
namespace megatron::model {
namespace {

using megatron::testing::make_store;
using megatron::testing::read_safetensors;
using megatron::testing::slice_of;
using megatron::testing::Tensors;

constexpr double kTolerance = 1e-5;  // the reference's own distance from float64 is 1e-6 to 2e-6

struct Golden {
  TransformerOptions options;
  Batch batch;
  Tensors weights, outputs, gradients;
};

Golden load(const std::filesystem::path& folder) {
  std::ifstream file(folder / "case.json");
  const auto spec = nlohmann::json::parse(file);
  const auto& config = spec["config"];
  Golden golden;
  golden.weights = read_safetensors(folder / "weights.safetensors");
  golden.outputs = read_safetensors(folder / "outputs.safetensors");
  golden.gradients = read_safetensors(folder / "grads.safetensors");
  golden.options.shape = {.num_layers = config["num_layers"],
                          .hidden = config["hidden_size"],
                          .num_heads = config["num_attention_heads"],
                          .ffn_hidden = config["ffn_hidden_size"],
                          .vocab = spec["vocab_size"],
                          .padded_vocab = spec["vocab_size"],
                          .max_positions = spec["max_sequence_length"],
                          .tied_output = spec["model"]["share_embeddings_and_output_weights"]};
  golden.options.activation =
      config["bias_activation_fusion"] ? kernels::Activation::GeluTanh : kernels::Activation::GeluErf;
  golden.options.layernorm_epsilon = config["layernorm_epsilon"];
  const auto data = read_safetensors(folder / "batch.safetensors");
  golden.batch = {.tokens_bs = data.at("tokens"),
                  .labels_bs = data.at("labels"),
                  .loss_mask_bs = data.at("loss_mask"),
                  .position_ids_bs = data.at("position_ids"),
                  .first_key_bs = {},
                  .sample_ids = {}};
  // The mask hides (1) what is later and what is of another document: the first key seen is the first 0 of a row.
  if (data.count("attention_mask"))
    golden.batch.first_key_bs = data.at("attention_mask").select(1, 0).to(at::kInt).argmin(-1).to(at::kInt);
  return golden;
}

class MegatronCore : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(MegatronCore, LogitsLossesAndGradientsAreItsOwn) {
  const auto [name, t] = GetParam();
  const auto folder = std::filesystem::path(unpacked_folder()) / "golden/megatron/model" / name;
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const auto golden = load(folder);
  const double tokens = golden.batch.loss_mask_bs.sum().item<double>();
  comm::run_ranks(t, [&](comm::Group tp) {
    const auto store = make_store(golden.options.shape, tp.size(), tp.rank(), golden.weights, at::kFloat);
    const TransformerStage gpt(golden.options, store, tp);
    EXPECT_NEAR_TENSOR(gpt.logits(golden.batch), golden.outputs.at("logits"), kTolerance);
    const auto loss = gpt.loss(golden.batch, true);
    EXPECT_EQ(loss.count, tokens);
    EXPECT_NEAR(loss.sum.item<double>() / tokens, golden.outputs.at("loss").item<double>(), kTolerance);
    loss.sum.backward();
    ASSERT_EQ(store.all().size(), golden.gradients.size());
    for (const auto& p : store.all()) {
      const auto expected = slice_of(golden.gradients.at(p->spec.name), p->spec);
      const double largest = expected.abs().max().item<double>();
      EXPECT_LE((p->grad / tokens - expected).abs().max().item<double>(), kTolerance * (largest + 1e-3))
          << p->spec.name;
    }
  });
}

TEST_P(MegatronCore, TheLossOfEachTokenIsItsOwn) {
  const auto [name, t] = GetParam();
  const auto folder = std::filesystem::path(unpacked_folder()) / "golden/megatron/model" / name;
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const auto golden = load(folder);
  const auto expected = golden.outputs.at("per_token_loss");
  comm::run_ranks(t, [&](comm::Group tp) {
    auto batch = golden.batch;  // each rank's own
    const auto store = make_store(golden.options.shape, tp.size(), tp.rank(), golden.weights, at::kFloat);
    const TransformerStage gpt(golden.options, store, tp);
    for (std::int64_t i = 0; i < expected.numel(); i += 3) {
      batch.loss_mask_bs = at::zeros_like(expected);
      batch.loss_mask_bs.view({-1})[i] = 1;
      EXPECT_NEAR(gpt.loss(batch, false).sum.item<double>(), expected.view({-1})[i].item<double>(), 2e-5) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, MegatronCore,
                         ::testing::Combine(::testing::Values("gpt2", "gpt_erf"), ::testing::Values(1, 2)));

}  // namespace
}  // namespace megatron::model
