#include "megatron/interchange/hugging_face/hugging_face.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "megatron/interchange/weights.h"
#include "tests/interchange/support.h"

namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Tensors;

#define NEED_GOLDEN(folder, name)                                                                \
  const fs::path folder = golden_model(name); /* NOLINT(bugprone-macro-parentheses): declared */ \
  if ((folder).empty()) GTEST_SKIP() << (name) << " is not there"

/// A copy of a reference folder in which one thing is changed.
struct Changed {
  explicit Changed(const fs::path& from) : tensors(testing::read_safetensors(from / "model.safetensors")) {
    config = json::parse(read_file(from / "config.json"));
  }
  std::string refused() {
    write_file(folder.path() / "config.json", config.dump());
    write_tensors(folder.path() / "model.safetensors", tensors);
    return refusal([&] { open_weights(folder.path()); });
  }
  TemporaryFolder folder;
  json config;
  Tensors tensors;
};

TEST(HuggingFaceFolder, Gpt2HasOurNamesAndOrders) {
  NEED_GOLDEN(folder, "tiny_gpt2");
  const auto theirs = testing::read_safetensors(folder / "model.safetensors");
  const auto source = open_weights(folder);
  const std::int64_t heads = 4, size = 16;
  const auto qkv = theirs.at("transformer.h.1.attn.c_attn.weight").t().contiguous();  // rows: all q, all k, all v
  const auto ours = qkv.view({3, heads, size, 64}).permute({1, 0, 2, 3}).reshape({192, 64});
  EXPECT_TRUE(read_whole(*source, "decoder.layers.1.self_attention.linear_qkv.weight").equal(ours));
  EXPECT_TRUE(read_whole(*source, "decoder.layers.0.mlp.linear_fc1.weight")
                  .equal(theirs.at("transformer.h.0.mlp.c_fc.weight").t()));
  EXPECT_TRUE(read_whole(*source, "embedding.word_embeddings.weight").equal(theirs.at("transformer.wte.weight")));
  EXPECT_EQ(source->shape("output_layer.weight"), nullptr);  // tied
  EXPECT_EQ(source->dtype("embedding.word_embeddings.weight"), "F32");
}

TEST(HuggingFaceFolder, LlamaHasOurNamesAndOrders) {
  NEED_GOLDEN(folder, "tiny_llama");
  const auto theirs = testing::read_safetensors(folder / "model.safetensors");
  const auto source = open_weights(folder);
  const auto part = [&](const char* name) { return theirs.at(std::string("model.layers.1.") + name + ".weight"); };
  const auto q = part("self_attn.q_proj"), k = part("self_attn.k_proj"), v = part("self_attn.v_proj");
  const auto ours = at::cat({q.narrow(0, 0, 32), k.narrow(0, 0, 16), v.narrow(0, 0, 16), q.narrow(0, 32, 32),
                             k.narrow(0, 16, 16), v.narrow(0, 16, 16)});
  EXPECT_TRUE(read_whole(*source, "decoder.layers.1.self_attention.linear_qkv.weight").equal(ours));
  EXPECT_TRUE(read_whole(*source, "decoder.layers.1.mlp.linear_fc1.weight")
                  .equal(at::cat({part("mlp.gate_proj"), part("mlp.up_proj")})));
  EXPECT_TRUE(read_whole(*source, "decoder.layers.1.pre_mlp_layernorm.weight").equal(part("post_attention_layernorm")));
}

TEST(HuggingFaceFolder, SlicesAreThoseOfTheWhole) {
  for (const char* name : {"tiny_gpt2", "tiny_llama", "tiny_bert", "tiny_t5"}) {
    NEED_GOLDEN(folder, name);
    const auto source = open_weights(folder);
    for (const std::string& tensor : source->tensors()) {
      const at::Tensor whole = read_whole(*source, tensor);
      checkpoint::Box box;
      at::Tensor wanted = whole;
      for (std::int64_t d = 0; d < whole.dim(); ++d) {
        const std::int64_t begin = whole.size(d) / 3, count = whole.size(d) / 2;
        box.offset.push_back(begin);
        box.shape.push_back(count);
        wanted = wanted.narrow(d, begin, count);
      }
      at::Tensor got = at::empty(box.shape, at::kFloat);
      source->read(tensor, box, got);
      EXPECT_TRUE(got.equal(wanted)) << tensor;
      at::Tensor wide = at::empty(box.shape, at::kDouble);
      source->read(tensor, box, wide);
      EXPECT_TRUE(wide.equal(wanted.to(at::kDouble))) << tensor;
    }
  }
}

TEST(HuggingFaceFolder, ExportedTensorsAreTheImportedBits) {
  for (const char* name : {"tiny_gpt2", "tiny_llama", "tiny_bert", "tiny_t5"}) {
    NEED_GOLDEN(folder, name);
    TemporaryFolder out;
    export_hugging_face(*open_weights(folder), read_config(folder), out.path() / name, {});
    expect_same(testing::read_safetensors(out.path() / name / "model.safetensors"),
                testing::read_safetensors(folder / "model.safetensors"));
    expect_same(read_all(*open_weights(out.path() / name)), read_all(*open_weights(folder)));
  }
}

TEST(HuggingFaceFolder, ShardsAndTheirIndexHoldTheSame) {
  NEED_GOLDEN(folder, "tiny_llama");
  TemporaryFolder out;
  export_hugging_face(*open_weights(folder), read_config(folder), out.path() / "x",
                      {.dtype = {}, .tokenizer = {}, .shard_bytes = 100'000});
  EXPECT_FALSE(fs::exists(out.path() / "x/model.safetensors"));
  EXPECT_TRUE(fs::exists(out.path() / "x/model-00002-of-00004.safetensors"));
  expect_same(read_all(*open_weights(out.path() / "x")), read_all(*open_weights(folder)));
}

TEST(HuggingFaceFolder, ADtypeConvertsEveryTensor) {
  NEED_GOLDEN(folder, "tiny_gpt2");
  TemporaryFolder out;
  export_hugging_face(*open_weights(folder), read_config(folder), out.path() / "x",
                      {.dtype = "bfloat16", .tokenizer = {}});
  const auto source = open_weights(out.path() / "x"), original = open_weights(folder);
  for (const std::string& name : source->tensors()) {
    EXPECT_EQ(source->dtype(name), "BF16");
    EXPECT_TRUE(read_whole(*source, name).equal(read_whole(*original, name).to(at::kBFloat16).to(at::kFloat))) << name;
  }
  EXPECT_EQ(json::parse(read_file(out.path() / "x/config.json"))["dtype"], "bfloat16");
}

TEST(HuggingFaceFolder, AnOutputThatIsNotEmptyIsLeftAlone) {
  NEED_GOLDEN(folder, "tiny_gpt2");
  TemporaryFolder out;
  write_file(out.path() / "mine", "x");
  expect_refused([&] { export_hugging_face(*open_weights(folder), read_config(folder), out.path(), {}); }, {"empty"});
  EXPECT_EQ(read_file(out.path() / "mine"), "x");
}

TEST(HuggingFaceFolder, AFolderThatLooksTemporaryIsLeftAlone) {
  NEED_GOLDEN(folder, "tiny_gpt2");
  TemporaryFolder out;
  const fs::path first = out.path() / concat(".tmp-x-", ::getpid(), "-0");
  for (const fs::path& theirs : {out.path() / ".tmp-x", first}) {
    fs::create_directory(theirs);
    write_file(theirs / "mine", "x");
  }
  export_hugging_face(*open_weights(folder), read_config(folder), out.path() / "x", {});
  EXPECT_EQ(read_file(out.path() / ".tmp-x/mine"), "x");
  EXPECT_EQ(read_file(first / "mine"), "x");
  expect_same(read_all(*open_weights(out.path() / "x")), read_all(*open_weights(folder)));
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(out.path())) ++entries;
  EXPECT_EQ(entries, 3u) << "nothing of its own is left";
}

TEST(HuggingFaceFolder, WeightsThatDoNotFitTheConfigurationAreRefusedByName) {
  NEED_GOLDEN(folder, "tiny_llama");
  const auto expect = [&](const std::function<void(Changed&)>& change, const std::string& word) {
    Changed changed(folder);
    change(changed);
    EXPECT_NE(changed.refused().find(word), std::string::npos) << word << " in: " << changed.refused();
  };
  expect([](Changed& c) { c.tensors.erase("model.layers.1.mlp.up_proj.weight"); }, "model.layers.1.mlp.up_proj.weight");
  expect([](Changed& c) { c.tensors["model.layers.0.q_scale"] = at::ones({3}); }, "model.layers.0.q_scale");
  expect([](Changed& c) { c.config["intermediate_size"] = 95; }, "[64, 95]");
  expect([](Changed& c) { c.config["num_hidden_layers"] = 1; }, "model.layers.1.");
  expect([](Changed& c) { c.config["num_hidden_layers"] = 10000; }, "10000 layers");
  expect([](Changed& c) { c.config["tie_word_embeddings"] = false; }, "lm_head.weight");
  Changed same(folder);
  EXPECT_EQ(same.refused(), "");
  Changed copy(folder);  // a tied output may be there twice
  copy.tensors["lm_head.weight"] = copy.tensors.at("model.embed_tokens.weight");
  EXPECT_EQ(copy.refused(), "");
}

TEST(HuggingFaceFolder, ASecondNameThatHoldsSomethingElseIsRefused) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"tiny_llama", "lm_head.weight", "model.embed_tokens.weight"},
      {"tiny_gpt2", "lm_head.weight", "transformer.wte.weight"},
      {"tiny_bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
      {"tiny_bert", "cls.predictions.decoder.bias", "cls.predictions.bias"},
      {"tiny_t5", "decoder.embed_tokens.weight", "shared.weight"}};
  for (const auto& [name, second, first] : cases) {
    SCOPED_TRACE(second);
    NEED_GOLDEN(folder, name);
    Changed changed(folder);
    at::Tensor& tensor = changed.tensors[second];
    tensor = changed.tensors.at(first).clone();
    EXPECT_EQ(changed.refused(), "");
    tensor.view({-1})[tensor.numel() - 1].add_(1);
    const std::string message = changed.refused();
    for (const std::string word : {second, first, "take"})
      EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
    if (std::string(second) != "lm_head.weight") continue;
    EXPECT_NE(message.find("\"tie_word_embeddings\": false"), std::string::npos) << message;
    changed.config["tie_word_embeddings"] = false;  // what the message proposes
    EXPECT_EQ(changed.refused(), "");
    EXPECT_TRUE(read_whole(*open_weights(changed.folder.path()), "output_layer.weight").equal(tensor));
    changed.config["tie_word_embeddings"] = true;
    tensor = tensor.narrow(0, 0, 3).contiguous();
    EXPECT_NE(changed.refused().find(second), std::string::npos) << "of another shape";
  }
}

TEST(HuggingFaceFolder, TheFirstBertsNamesOfNormsAreRead) {
  NEED_GOLDEN(folder, "tiny_bert");
  Changed first(folder);
  for (const auto& [name, tensor] : Tensors(first.tensors)) {
    std::string other = name;
    if (name.ends_with("LayerNorm.weight")) other.replace(name.size() - 6, 6, "gamma");
    if (name.ends_with("LayerNorm.bias")) other.replace(name.size() - 4, 4, "beta");
    first.tensors.erase(name);
    first.tensors[other] = tensor;
  }
  EXPECT_TRUE(first.tensors.contains("bert.embeddings.LayerNorm.gamma"));
  EXPECT_EQ(first.refused(), "");
  expect_same(read_all(*open_weights(first.folder.path())), read_all(*open_weights(folder)));
}

TEST(HuggingFaceFolder, TheSingleFileComesBeforeAnIndexThatWasLeft) {  // as transformers has it
  NEED_GOLDEN(folder, "tiny_llama");
  TemporaryFolder place;
  const fs::path out = place.path() / "x";
  export_hugging_face(*open_weights(folder), read_config(folder), out,
                      {.dtype = {}, .tokenizer = {}, .shard_bytes = 100'000});
  ASSERT_TRUE(fs::remove(out / "model-00002-of-00004.safetensors"));
  expect_refused([&] { open_weights(out); }, {"00002"});
  fs::copy(folder / "model.safetensors", out);
  expect_same(read_all(*open_weights(out)), read_all(*open_weights(folder)));
}

TEST(HuggingFaceFolder, AHostileIndexIsRefused) {
  NEED_GOLDEN(folder, "tiny_llama");
  TemporaryFolder place;
  const fs::path out = place.path() / "x";
  export_hugging_face(*open_weights(folder), read_config(folder), out,
                      {.dtype = {}, .tokenizer = {}, .shard_bytes = 100'000});
  const json index = json::parse(read_file(out / "model.safetensors.index.json"));
  const auto expect = [&](const std::function<void(json&)>& change, const std::string& word) {
    json changed = index;
    change(changed);
    write_file(out / "model.safetensors.index.json", changed.dump());
    expect_refused([&] { open_weights(out); }, {word});
  };
  expect([](json& i) { i["weight_map"]["model.norm.weight"] = "../model.safetensors"; }, "same folder");
  expect([](json& i) { i["weight_map"]["model.norm.weight"] = 3; }, "same folder");
  expect([](json& i) { i["weight_map"]["model.norm.weight"] = "a/model.safetensors"; }, "same folder");
  expect([](json& i) { i["weight_map"]["model.norm.weight"] = "model-00009-of-00004.safetensors"; }, "00009");
  expect([](json& i) { i["weight_map"]["model.norm.weight"] = "model-00001-of-00004.safetensors"; },
         "model.norm.weight");
  expect([](json& i) { i["weight_map"]["model.other.weight"] = "model-00001-of-00004.safetensors"; },
         "model.other.weight");
  expect([](json& i) { i.erase("weight_map"); }, "weight_map");
  fs::resize_file(out / "model-00002-of-00004.safetensors", 1000);
  expect([](json&) {}, "00002");
}

TEST(HuggingFaceFolder, ANetworkThatComputesOtherwiseIsToldByItsOptions) {
  NEED_GOLDEN(folder, "tiny_llama");
  auto model = model_config_of(folder);
  EXPECT_TRUE(differences(model, folder).empty());
  model.num_query_groups = model.num_attention_heads * 2;  // no shape of the weights tells
  model.num_attention_heads *= 2;
  model.rotary_base = 10000;
  expect_refused([&] { check_same_network(model, folder); },
                 {"num_attention_heads: 8, and 4 in the folder", "rotary_base: 10000, and 50000"});
}

TEST(HuggingFaceFolder, AFolderOfNoKindIsRefused) {
  TemporaryFolder folder;
  expect_refused([&] { open_weights(folder.path()); }, {folder.path().string(), "an empty folder"});
  expect_refused([&] { open_weights(folder.path() / "no"); }, {"does not exist"});
  write_file(folder.path() / "config.json", R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 2, "n_head": 1,)"
                                            R"("n_positions": 2, "vocab_size": 3})");
  expect_refused([&] { open_weights(folder.path()); }, {"model.safetensors", "neither"});
}

}  // namespace
}  // namespace megatron::interchange
