#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "megatron/model/decode.h"
#include "megatron/model/gpt.h"
#include "tests/testing/dense_gpt.h"

// A GPT-2 folder as Hugging Face transformers computes it, its weights renamed and rearranged here.
namespace megatron::model {
namespace {

using megatron::testing::make_store;
using megatron::testing::read_safetensors;
using megatron::testing::Tensors;

const GptOptions kTiny = [] {
  GptOptions options;
  options.shape = {.num_layers = 2,
                   .hidden = 64,
                   .num_heads = 4,
                   .ffn_hidden = 96,
                   .vocab = 257,
                   .padded_vocab = 264,
                   .max_positions = 32};
  return options;
}();

/// The q, k, v blocks of rows that GPT-2 stores one after the other -> rows a head: q, k, v.
at::Tensor by_head(const at::Tensor& rows) {
  const std::int64_t n = kTiny.shape.num_heads, d = kTiny.shape.hidden / n;
  return rows.view({3, n, d, -1}).permute({1, 0, 2, 3}).reshape(rows.sizes());
}

/// {our name, theirs}; their matrices are transposed (Conv1D).
std::map<std::string, std::string> names() {
  std::map<std::string, std::string> names{{"embedding.word_embeddings.weight", "transformer.wte.weight"},
                                           {"embedding.position_embeddings.weight", "transformer.wpe.weight"}};
  for (const std::string part : {"weight", "bias"}) {
    names["decoder.final_layernorm." + part] = "transformer.ln_f." + part;
    for (const std::string l : {"0", "1"}) {
      const std::string ours = "decoder.layers." + l + ".", theirs = "transformer.h." + l + ".";
      names[ours + "input_layernorm." + part] = theirs + "ln_1." + part;
      names[ours + "pre_mlp_layernorm." + part] = theirs + "ln_2." + part;
      names[ours + "self_attention.linear_qkv." + part] = theirs + "attn.c_attn." + part;
      names[ours + "self_attention.linear_proj." + part] = theirs + "attn.c_proj." + part;
      names[ours + "mlp.linear_fc1." + part] = theirs + "mlp.c_fc." + part;
      names[ours + "mlp.linear_fc2." + part] = theirs + "mlp.c_proj." + part;
    }
  }
  return names;
}

at::Tensor ours_from_theirs(const std::string& name, at::Tensor tensor) {
  if (name.find(".linear_") != std::string::npos && tensor.dim() == 2) tensor = tensor.t().contiguous();
  if (name.find("linear_qkv") != std::string::npos) tensor = by_head(tensor);
  if (name == "embedding.word_embeddings.weight") {
    auto padded = at::ones({kTiny.shape.padded_vocab, tensor.size(1)});
    padded.narrow(0, 0, tensor.size(0)).copy_(tensor);
    tensor = padded;
  }
  return tensor;
}

TEST(HuggingFaceGpt2, LogitsLossGradientsAndGreedyTextAreItsOwn) {
  const auto folder = std::filesystem::path(MEGATRON_SHARED_FOLDER) / "golden/models/tiny_gpt2";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const auto theirs = read_safetensors(folder / "model.safetensors");
  const auto expected = read_safetensors(folder / "expected.safetensors");
  std::ifstream file(folder / "expected.json");
  const auto report = nlohmann::json::parse(file);
  Tensors weights;
  for (const auto& [ours, name] : names()) weights[ours] = ours_from_theirs(ours, theirs.at(name));
  const auto store = make_store(kTiny.shape, 1, 0, weights, at::kFloat);
  const Gpt gpt(kTiny, store, {});

  // Their labels are the ids; they shift them inside: the logits of position i are for id i + 1.
  const auto ids = expected.at("input.input_ids"), labels = expected.at("input.labels");
  Batch batch;
  batch.tokens_bs = ids;
  EXPECT_NEAR_TENSOR(gpt.logits(batch), expected.at("output.logits"), 1e-5);
  batch.labels_bs = labels.roll(-1, 1);
  batch.loss_mask_bs = batch.labels_bs.ge(0).to(at::kFloat);
  batch.loss_mask_bs.select(1, ids.size(1) - 1).zero_();
  const auto loss = gpt.loss(batch, true);
  EXPECT_NEAR(loss.sum.item<double>() / loss.count, report["loss"].get<double>(), 1e-5);
  loss.sum.backward();
  int compared = 0;
  for (const auto& [ours, name] : names()) {
    const auto found = expected.find("grad." + name);
    if (found == expected.end()) continue;
    const auto want = ours_from_theirs(ours, found->second), got = store.get(ours)->grad / loss.count;
    EXPECT_LE((got - want).abs().max().item<double>(), 1e-5 * (want.abs().max().item<double>() + 1e-3)) << ours;
    ++compared;
  }
  EXPECT_EQ(compared, 6);

  const auto& greedy = report["greedy"];
  auto input = at::tensor(greedy["prompt_ids"].get<std::vector<std::int64_t>>(), at::kLong).unsqueeze(0);
  const CachedGpt cached(gpt.options(), store, {});
  auto cache = cached.make_cache(1, 32);
  std::vector<std::int64_t> ids_written;
  for (std::size_t i = 0; i < greedy["new_ids"].size(); ++i) {
    input = cached.forward(input, cache).argmax(-1, true);
    ids_written.push_back(input.item<std::int64_t>());
  }
  EXPECT_EQ(ids_written, greedy["new_ids"].get<std::vector<std::int64_t>>());
}

}  // namespace
}  // namespace megatron::model
