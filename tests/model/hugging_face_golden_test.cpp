#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "megatron/model/decoding/decode.h"
#include "megatron/model/transformer_stage.h"
#include "tests/testing/dense_model.h"
#include "tests/testing/folders.h"

// Folders as Hugging Face transformers computes them, their weights renamed and rearranged here.
namespace megatron::model {
namespace {

using megatron::testing::make_store;
using megatron::testing::read_safetensors;
using megatron::testing::Tensors;

/// A parameter of ours and those of theirs whose rows it has.
struct Source {
  std::vector<std::string> names;
  /// Their tensors -> ours; of weights and of gradients alike.
  std::function<at::Tensor(const std::vector<at::Tensor>&)> arrange = [](const auto& theirs) { return theirs[0]; };
};
using Sources = std::map<std::string, Source>;

at::Tensor padded(const at::Tensor& rows, std::int64_t count) {
  auto all = at::ones({count, rows.size(1)});
  all.narrow(0, 0, rows.size(0)).copy_(rows);
  return all;
}

/// Rows of heads -> rows a group: its queries, key, value.
at::Tensor by_group(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const plan::ModelShape& shape) {
  const std::int64_t g = shape.groups(), d = shape.head();
  const auto of_groups = [&](const at::Tensor& rows) { return rows.reshape({g, -1, d, rows.numel() / rows.size(0)}); };
  auto sizes = q.sizes().vec();
  sizes[0] = shape.qkv_rows();
  return at::cat({of_groups(q), of_groups(k), of_groups(v)}, 1).reshape(sizes);
}

TransformerOptions tiny_gpt2() {
  TransformerOptions options;
  options.shape = {.num_layers = 2,
                   .hidden = 64,
                   .num_heads = 4,
                   .ffn_hidden = 96,
                   .vocab = 257,
                   .padded_vocab = 264,
                   .max_positions = 32};
  return options;
}

/// Their matrices are transposed (Conv1D), and q, k, v are blocks of rows one after the other.
Sources gpt2_sources(const plan::ModelShape& shape) {
  const auto pad = [rows = shape.padded_vocab](const auto& theirs) { return padded(theirs[0], rows); };
  const auto transposed = [](const auto& theirs) { return theirs[0].t().contiguous(); };
  const auto qkv = [shape](const auto& theirs) {
    const auto rows = theirs[0].dim() == 2 ? theirs[0].t() : theirs[0];
    const auto blocks = rows.chunk(3, 0);
    return by_group(blocks[0], blocks[1], blocks[2], shape);
  };
  Sources sources{{"embedding.word_embeddings.weight", {{"transformer.wte.weight"}, pad}},
                  {"embedding.position_embeddings.weight", {{"transformer.wpe.weight"}}}};
  for (const std::string part : {"weight", "bias"}) {
    sources["decoder.final_layernorm." + part] = {{"transformer.ln_f." + part}};
    for (const std::string l : {"0", "1"}) {
      const std::string ours = "decoder.layers." + l + ".", theirs = "transformer.h." + l + ".";
      sources[ours + "input_layernorm." + part] = {{theirs + "ln_1." + part}};
      sources[ours + "pre_mlp_layernorm." + part] = {{theirs + "ln_2." + part}};
      sources[ours + "self_attention.linear_qkv." + part] = {{theirs + "attn.c_attn." + part}, qkv};
      for (const auto& [mine, its] : std::map<std::string, std::string>{{"self_attention.linear_proj.", "attn.c_proj."},
                                                                        {"mlp.linear_fc1.", "mlp.c_fc."},
                                                                        {"mlp.linear_fc2.", "mlp.c_proj."}}) {
        Source source{{theirs + its + part}};
        if (part == "weight") source.arrange = transposed;
        sources[ours + mine + part] = source;
      }
    }
  }
  return sources;
}

TransformerOptions tiny_llama() {
  TransformerOptions options;
  options.shape = {.num_layers = 2,
                   .hidden = 64,
                   .num_heads = 4,
                   .ffn_hidden = 96,
                   .vocab = 256,
                   .padded_vocab = 264,
                   .max_positions = 64,
                   .num_groups = 2,
                   .rms_norm = true,
                   .gated = true,
                   .linear_bias = false,
                   .learned_positions = false};
  options.activation = kernels::Activation::Silu;
  options.layernorm_epsilon = 1e-6;
  options.rope = {.rotary_dim = 16, .base = 50000};
  return options;
}

Sources llama_sources(const plan::ModelShape& shape) {
  const auto pad = [rows = shape.padded_vocab](const auto& theirs) { return padded(theirs[0], rows); };
  const auto qkv = [shape](const auto& theirs) { return by_group(theirs[0], theirs[1], theirs[2], shape); };
  const auto stacked = [](const auto& theirs) { return at::cat({theirs[0], theirs[1]}); };
  Sources sources{{"embedding.word_embeddings.weight", {{"model.embed_tokens.weight"}, pad}},
                  {"decoder.final_layernorm.weight", {{"model.norm.weight"}}}};
  for (const std::string l : {"0", "1"}) {
    const std::string ours = "decoder.layers." + l + ".", theirs = "model.layers." + l + ".";
    const std::string attention = theirs + "self_attn.", mlp = theirs + "mlp.";
    sources[ours + "input_layernorm.weight"] = {{theirs + "input_layernorm.weight"}};
    sources[ours + "pre_mlp_layernorm.weight"] = {{theirs + "post_attention_layernorm.weight"}};
    sources[ours + "self_attention.linear_qkv.weight"] = {
        {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"}, qkv};
    sources[ours + "self_attention.linear_proj.weight"] = {{attention + "o_proj.weight"}};
    sources[ours + "mlp.linear_fc1.weight"] = {{mlp + "gate_proj.weight", mlp + "up_proj.weight"}, stacked};
    sources[ours + "mlp.linear_fc2.weight"] = {{mlp + "down_proj.weight"}};
  }
  return sources;
}

/// Results of the folder `name`.
struct Golden {
  std::filesystem::path folder;
  Tensors weights, expected;
  nlohmann::json report;

  explicit Golden(const std::string& name) : folder(std::filesystem::path(unpacked_folder()) / "golden/models" / name) {
    if (!there()) return;
    weights = read_safetensors(folder / "model.safetensors");
    expected = read_safetensors(folder / "expected.safetensors");
    std::ifstream file(folder / "expected.json");
    report = nlohmann::json::parse(file);
  }
  bool there() const { return std::filesystem::exists(folder); }

  Tensors arranged(const Sources& sources) const {
    Tensors ours;
    for (const auto& [name, source] : sources) {
      std::vector<at::Tensor> theirs;
      for (const auto& their : source.names) theirs.push_back(weights.at(their));
      ours[name] = source.arrange(theirs);
    }
    return ours;
  }
};

/// How much of a gradient's square lies in what the parameters of `names` have, by the report.
double squared_norm(const nlohmann::json& norms, const std::vector<std::string>& names) {
  double sum = 0;
  for (const auto& name : names) sum += std::pow(norms.at(name).get<double>(), 2);
  return sum;
}

/// Logits, loss, every gradient that the folder has in full, and the norms of all.
void expect_results(const Golden& golden, const TransformerOptions& options, const Sources& sources,
                    int compared_in_full) {
  const auto store = make_store(options.shape, 1, 0, golden.arranged(sources), at::kFloat);
  const TransformerStage gpt(options, store, {});
  // Their labels are the ids; they shift them inside: the logits of position i are for id i + 1.
  const auto ids = golden.expected.at("input.input_ids"), labels = golden.expected.at("input.labels");
  Batch batch;
  batch.tokens_bs = ids;
  const auto error = (gpt.logits(batch) - golden.expected.at("output.logits")).abs().max().item<double>();
  EXPECT_LE(error, 1e-5) << "logits";
  batch.labels_bs = labels.roll(-1, 1);
  batch.loss_mask_bs = batch.labels_bs.ge(0).to(at::kFloat);
  batch.loss_mask_bs.select(1, ids.size(1) - 1).zero_();
  const auto loss = gpt.loss(batch, true);
  EXPECT_NEAR(loss.sum.item<double>() / loss.count, golden.report["loss"].get<double>(), 1e-5);
  loss.sum.backward();
  for (const auto& [ours, source] : sources) {
    const auto gradient = store.get(ours)->grad / loss.count;
    const double expected = std::sqrt(squared_norm(golden.report["grad_norm_by_parameter"], source.names));
    EXPECT_NEAR(gradient.norm().item<double>(), expected, 1e-5 * (1 + expected)) << ours;
    // A gradient that the folder has is put where our parameter has it, beside NaN for what it has not.
    std::vector<at::Tensor> theirs;
    for (const auto& name : source.names) {
      const auto found = golden.expected.find("grad." + name);
      const bool there = found != golden.expected.end();
      if (there) --compared_in_full;
      theirs.push_back(there ? found->second : golden.weights.at(name) * std::numeric_limits<float>::quiet_NaN());
    }
    auto want = source.arrange(theirs);
    if (ours == "embedding.word_embeddings.weight") want.slice(0, options.shape.vocab).zero_();
    EXPECT_LE((gradient - want).abs().nan_to_num(0).max().item<double>(), 1e-5) << ours;
  }
  EXPECT_EQ(compared_in_full, 0);
}

void expect_greedy_text(const Golden& golden, const TransformerOptions& options, const Sources& sources) {
  const auto store = make_store(options.shape, 1, 0, golden.arranged(sources), at::kFloat);
  const auto& greedy = golden.report["greedy"];
  auto input = at::tensor(greedy["prompt_ids"].get<std::vector<std::int64_t>>(), at::kLong).unsqueeze(0);
  const CachedGpt cached(options, store, {});
  auto cache = cached.make_cache(1, 32);
  std::vector<std::int64_t> ids_written;
  for (std::size_t i = 0; i < greedy["new_ids"].size(); ++i) {
    input = cached.forward(input, cache).argmax(-1, true);
    ids_written.push_back(input.item<std::int64_t>());
  }
  EXPECT_EQ(ids_written, greedy["new_ids"].get<std::vector<std::int64_t>>());
}

TEST(HuggingFaceGpt2, LogitsLossGradientsAndGreedyTextAreItsOwn) {
  const Golden golden("tiny_gpt2");
  if (!golden.there()) GTEST_SKIP() << golden.folder << " is not there";
  const auto options = tiny_gpt2();
  expect_results(golden, options, gpt2_sources(options.shape), 6);
  expect_greedy_text(golden, options, gpt2_sources(options.shape));
}

TEST(HuggingFaceLlama, LogitsLossGradientsAndGreedyTextAreItsOwn) {
  const Golden golden("tiny_llama");
  if (!golden.there()) GTEST_SKIP() << golden.folder << " is not there";
  const auto options = tiny_llama();
  expect_results(golden, options, llama_sources(options.shape), 5);
  expect_greedy_text(golden, options, llama_sources(options.shape));
}

}  // namespace
}  // namespace megatron::model
