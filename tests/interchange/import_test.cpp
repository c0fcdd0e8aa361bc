#include "megatron/interchange/import.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/manifest.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/families/hf_family.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/hugging_face/hugging_face.h"
#include "megatron/interchange/weights.h"
#include "megatron/recipe/forward.h"
#include "tests/interchange/support.h"
#include "tests/testing/folders.h"

namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;

TEST(Import, ACheckpointHoldsTheSameWeightsAndNetwork) {
  for (const char* name : {"tiny_gpt2", "tiny_llama", "tiny_bert", "tiny_t5"}) {
    const fs::path folder = golden_model(name);
    if (folder.empty()) GTEST_SKIP() << name << " is not there";
    TemporaryFolder place;
    const fs::path ours = place.path() / "ours", back = place.path() / "back";
    import_weights(folder, ours, {});
    EXPECT_TRUE(format_of(ours).native);
    EXPECT_TRUE(checkpoint::verify(ours).empty());
    expect_same(read_all(*open_weights(ours)), read_all(*open_weights(folder)));
    EXPECT_TRUE(differences(checkpoint::saved_recipe(ours).model, folder).empty());
    export_hugging_face(*open_weights(ours), export_config(ours), back, {});
    expect_same(testing::read_safetensors(back / "model.safetensors"),
                testing::read_safetensors(folder / "model.safetensors"));
  }
}

TEST(Import, MegatronsRanksBecomeACheckpointAndAFolder) {
  for (const char* name : {"gpt2", "llama"}) {
    const fs::path folder = fs::path(unpacked_folder()) / "interchange" / name;
    TemporaryFolder place;
    import_weights(folder, place.path() / "ours", {});
    export_hugging_face(*open_weights(place.path() / "ours"), export_config(place.path() / "ours"),
                        place.path() / "theirs", {});
    expect_same(read_all(*open_weights(place.path() / "theirs")),
                testing::read_safetensors(folder / "expected.safetensors"));
    EXPECT_TRUE(differences(model_config_of(place.path() / "theirs"), folder).empty());
  }
}

TEST(Import, ADtypeConvertsAndIsTheRecipes) {
  const fs::path folder = golden_model("tiny_llama");
  if (folder.empty()) GTEST_SKIP() << "tiny_llama is not there";
  TemporaryFolder place;
  import_weights(folder, place.path() / "ours", {.dtype = "bfloat16"});
  const auto source = open_weights(place.path() / "ours"), original = open_weights(folder);
  EXPECT_EQ(checkpoint::saved_recipe(place.path() / "ours").train.dtype, "bf16");
  for (const std::string& name : original->tensors()) {
    EXPECT_EQ(source->dtype(name), "BF16");
    EXPECT_TRUE(read_whole(*source, name).equal(read_whole(*original, name).to(at::kBFloat16).to(at::kFloat))) << name;
  }
}

/// A folder of a tiny Llama with these files beside it.
struct Companions {
  explicit Companions(const std::map<std::string, std::string>& files, const char* model = "tiny_llama") {
    if (golden_model(model).empty()) return;
    fs::copy(golden_model(model), folder(), fs::copy_options::recursive);
    for (const char* name : {"tokenizer.json", "generation_config.json"}) fs::remove(folder() / name);
    for (const auto& [name, text] : files) write_file(folder() / name, text);
  }
  fs::path folder() const { return place.path() / "theirs"; }
  TemporaryFolder place;
};

const std::map<std::string, std::string> kPair = {{"vocab.json", R"({"a": 0, "b": 1, "<|endoftext|>": 2})"},
                                                  {"merges.txt", "#version: 0.2\n"}};

std::map<std::string, std::string> with(std::map<std::string, std::string> files, const std::string& name,
                                        const std::string& text) {
  files[name] = text;
  return files;
}

TEST(Import, WhatLiesBesideTheWeightsGoesAlongBothWays) {
  const Companions theirs(with(with(kPair, "generation_config.json", R"({"eos_token_id": [1, 0], "bos_token_id": 0})"),
                               "chat_template.jinja", "{{ messages }}"));
  if (!fs::exists(theirs.folder())) GTEST_SKIP() << "tiny_llama is not there";
  const fs::path ours = theirs.place.path() / "ours", back = theirs.place.path() / "back";
  import_weights(theirs.folder(), ours, {});
  EXPECT_EQ(companion_folder(ours), ours);  // a pair of files is a tokenizer too
  const auto tokenizer = text::Tokenizer::load(companion_folder(ours));
  EXPECT_EQ(end_tokens(ours, tokenizer), (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(end_tokens(theirs.folder(), tokenizer), end_tokens(ours, tokenizer));
  export_hugging_face(*open_weights(ours), export_config(ours), back,
                      {.dtype = "", .tokenizer = companion_folder(ours)});
  for (const char* name : {"generation_config.json", "chat_template.jinja", "vocab.json", "merges.txt"})
    EXPECT_EQ(read_file(back / name), read_file(theirs.folder() / name)) << name;
  EXPECT_EQ(read_config(back).token_ids, read_config(theirs.folder()).token_ids);
}

TEST(Companions, AreFoundAndCopiedWithATokenizerOfAnyFile) {
  const std::filesystem::path goldens = std::filesystem::path(tests_folder()) / "golden/tokenizers";
  const std::string model = read_file(goldens / "bpe.model"), ranks = "IQ== 0\nIg== 1\n";
  for (const auto& [name, bytes] : {std::pair<const char*, std::string>{"tokenizer.model", model},
                                    {"spiece.model", model},
                                    {"of_any_name.model", model},
                                    {"small.tiktoken", ranks},
                                    {"vocab.txt", "[UNK]\na\n"}}) {
    const TemporaryFolder folder;
    const fs::path from = folder.path() / "from", to = folder.path() / "to";
    EXPECT_FALSE(has_tokenizer(from)) << "there is no such folder";
    fs::create_directories(from);
    fs::create_directories(to);
    EXPECT_FALSE(has_tokenizer(from));
    write_file(from / name, bytes);
    EXPECT_TRUE(has_tokenizer(from)) << name;
    EXPECT_EQ(copy_companions(from, to), 1) << name;
    EXPECT_EQ(read_file(to / name), bytes);
  }
}

/// A run's checkpoint, in which no config.json is kept, with the files that a run keeps of the folder it began with.
fs::path run_of(const Companions& theirs) {
  const fs::path run = theirs.place.path() / "run";
  import_weights(theirs.folder(), run / "checkpoints", {});
  for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
    if (entry.is_regular_file() && entry.path().filename() != "latest") fs::remove(entry.path());
  const fs::path manifest = checkpoint::find_checkpoint(run) / "manifest.json";
  auto changed = checkpoint::read_manifest(checkpoint::find_checkpoint(run));
  changed.metadata.erase("hugging_face_config");
  write_file(manifest, checkpoint::manifest_text(changed));
  copy_companions(theirs.folder(), run);
  return run;
}

TEST(Import, ARunKeepsTheIdsOfTheModelThatItBeganWith) {
  const Companions theirs(
      with(kPair, "generation_config.json", R"({"eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 2})"));
  if (!fs::exists(theirs.folder())) GTEST_SKIP() << "tiny_llama is not there";
  const fs::path run = run_of(theirs);
  const auto tokenizer = text::Tokenizer::load(companion_folder(run));
  // Its documents ended with <|endoftext|>.
  EXPECT_EQ(end_tokens(run, tokenizer), (std::vector<std::int64_t>{1, 2}));
  const auto ids = export_config(run).token_ids;
  EXPECT_EQ(ids, (TokenIds{{"bos_token_id", "0"}, {"eos_token_id", "1"}, {"pad_token_id", "2"}}));
}

TEST(Import, ARunWhoseFilesNameNoIdsEndsTextsAsItsDocumentsEnded) {
  const Companions theirs({{"vocab.json", R"({"a": 0, "<s>": 1, "</s>": 2, "<eot>": 3})"}, {"merges.txt", ""}});
  if (!fs::exists(theirs.folder())) GTEST_SKIP() << "tiny_llama is not there";
  auto object = nlohmann::json::parse(read_file(theirs.folder() / "config.json"));
  for (const char* name : {"eos_token_id", "bos_token_id", "pad_token_id"}) object.erase(name);
  write_file(theirs.folder() / "config.json", object.dump());
  const fs::path run = run_of(theirs);
  EXPECT_EQ(end_tokens(run, text::Tokenizer::load(companion_folder(run))), std::vector<std::int64_t>{2});
  EXPECT_EQ(export_config(run).token_ids, (TokenIds{{"bos_token_id", "2"}, {"eos_token_id", "2"}}));
  write_file(run / "tokenizer_config.json", R"({"eos_token": "<eot>", "bos_token": "<s>", "add_bos_token": true})");
  EXPECT_EQ(end_tokens(run, text::Tokenizer::load(companion_folder(run))), std::vector<std::int64_t>{3});
  EXPECT_EQ(export_config(run).token_ids, (TokenIds{{"bos_token_id", "1"}, {"eos_token_id", "3"}}));
}

TEST(Import, TextsOfAnAdapterEndWhereThoseOfItsBaseDo) {
  const Companions theirs(with(kPair, "generation_config.json", R"({"eos_token_id": [1, 0]})"));
  if (!fs::exists(theirs.folder())) GTEST_SKIP() << "tiny_llama is not there";
  const fs::path adapter = theirs.place.path() / "adapter", ours = theirs.place.path() / "ours";
  import_weights(theirs.folder(), ours, {});
  fs::create_directories(adapter);
  const auto ends = [&](const fs::path& base) {
    write_file(adapter / "adapter_config.json",
               nlohmann::json{{"peft_type", "LORA"}, {"r", 2}, {"base_model_name_or_path", base.string()}}.dump());
    return end_tokens(adapter, text::Tokenizer::load(companion_folder(adapter)));
  };
  EXPECT_EQ(ends(theirs.folder()), (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(ends(ours), (std::vector<std::int64_t>{1, 0}));
  for (const auto& [name, text] : kPair) write_file(adapter / name, text);  // PEFT's users save their tokenizer too
  EXPECT_EQ(ends(theirs.folder()), (std::vector<std::int64_t>{1, 0}));
  write_file(adapter / "generation_config.json", R"({"eos_token_id": 0})");
  EXPECT_EQ(ends(theirs.folder()), std::vector<std::int64_t>{0});
}

/// PEFT's folder of an adapter of rank 2 of those matrices of the model in `base` whose names end so, drawn at random;
/// what its definition makes of them: W + alpha / rank B A.
testing::Tensors write_adapter(const fs::path& base, const std::vector<std::string>& modules, const fs::path& folder) {
  testing::Tensors merged = testing::read_safetensors(base / "model.safetensors"), matrices;
  for (auto& [name, weight] : merged)
    for (const std::string& module : modules)
      if (name.ends_with(module + ".weight")) {
        const at::Tensor a = at::randn({2, weight.size(1)}), b = at::randn({weight.size(0), 2});
        const std::string theirs = "base_model.model." + name.substr(0, name.rfind(".weight"));
        matrices[theirs + ".lora_A.weight"] = a;
        matrices[theirs + ".lora_B.weight"] = b;
        weight = weight + at::matmul(b, a) * 3;
      }
  fs::create_directories(folder);
  write_tensors(folder / "adapter_model.safetensors", matrices);
  write_file(folder / "adapter_config.json", nlohmann::json{{"peft_type", "LORA"},
                                                            {"r", 2},
                                                            {"lora_alpha", 6},
                                                            {"target_modules", modules},
                                                            {"base_model_name_or_path", base.string()}}
                                                 .dump());
  return merged;
}

TEST(Adapters, OfPeftAreOfTheMatricesOfTheirBasesFamily) {
  const fs::path llama = golden_model("tiny_llama");
  if (llama.empty()) GTEST_SKIP() << "tiny_llama is not there";
  const TemporaryFolder place;
  const fs::path base = place.path() / "base", adapter = place.path() / "adapter", whole = place.path() / "whole";
  families::FolderConfig phi =
      export_config(llama);  // whose network a Phi-3 can be too: the same matrices, some of them fused
  phi.model.rope_scaling_factor = 1;
  phi.family = &families::hf_family("phi3");
  export_hugging_face(*open_weights(llama), phi, base, {});
  const auto merged = write_adapter(base, {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}, adapter);
  export_hugging_face(*open_weights(adapter), export_config(adapter), whole, {});
  const auto got = testing::read_safetensors(whole / "model.safetensors");
  EXPECT_EQ(got.size(), merged.size());
  for (const auto& [name, tensor] : merged) EXPECT_NEAR_TENSOR(got.at(name), tensor, 1e-5) << name;
  const auto peft = std::ranges::find_if(weight_formats(), [](const WeightFormat& format) {
    return std::string_view(format.words.name) == families::kPeftWords.name;
  });
  expect_refused([&] { peft->write(*open_weights(adapter), export_config(adapter), place.path() / "back", {}); },
                 {"PEFT has one adapter for all of", "qkv_proj"});
}

TEST(Import, OfAnAdapterBringsTheFilesBesideItsBase) {
  const Companions theirs(with(with(kPair, "generation_config.json", R"({"eos_token_id": [1, 0]})"),
                               "chat_template.jinja", "{{ messages }}"));
  if (!fs::exists(theirs.folder())) GTEST_SKIP() << "tiny_llama is not there";
  const fs::path adapter = theirs.place.path() / "adapter";
  const auto merged = write_adapter(theirs.folder(), {"q_proj"}, adapter);
  for (const bool own : {false, true}) {  // PEFT's users save their tokenizer too
    const fs::path ours = theirs.place.path() / (own ? "own" : "base's");
    if (own)
      for (const auto& [name, text] : with(kPair, "chat_template.jinja", "{{ others }}"))
        write_file(adapter / name, text);
    import_weights(adapter, ours, {});
    EXPECT_EQ(companion_folder(ours), ours);
    EXPECT_EQ(end_tokens(ours, text::Tokenizer::load(ours)), (std::vector<std::int64_t>{1, 0}));
    EXPECT_EQ(read_file(ours / "chat_template.jinja"), own ? "{{ others }}" : "{{ messages }}");
    EXPECT_EQ(export_config(ours).token_ids, export_config(adapter).token_ids);
  }
}

TEST(Import, IdsThatOnlyConfigJsonNamesAreKeptToo) {
  Companions theirs(kPair);
  if (!fs::exists(theirs.folder())) GTEST_SKIP() << "tiny_llama is not there";
  std::string config = read_file(theirs.folder() / "config.json");
  auto object = nlohmann::json::parse(config);
  object["eos_token_id"] = 1;
  object["bos_token_id"] = nullptr;
  write_file(theirs.folder() / "config.json", object.dump());
  const fs::path run = run_of(theirs);
  EXPECT_EQ(ids_of(read_token_ids(run), "eos_token_id"), std::vector<std::int64_t>{1});
  for (const char* damaged :
       {R"({"eos_token_id": "1"})", R"({"eos_token_id": [1, -4]})", R"({"eos_token_id": 1e30})", "[]"}) {
    write_file(run / "generation_config.json", damaged);
    expect_refused([&] { read_token_ids(run); }, {"generation_config.json"});
  }
}

TEST(Import, ABertIsNoModelThatWrites) {
  const fs::path bert = golden_model("tiny_bert"), llama = golden_model("tiny_llama");
  if (bert.empty() || llama.empty()) GTEST_SKIP() << "tiny_bert is not there";
  TemporaryFolder place;
  import_weights(bert, place.path() / "ours", {});
  for (const fs::path& folder : {bert, place.path() / "ours"})
    expect_refused(
        [&] { recipe::check_writes(model_config_of(folder), folder, "generate", recipe::Writes::TextsOrAnswers); },
        {"generate", "BERT"});
  EXPECT_NO_THROW(recipe::check_writes(model_config_of(llama), llama, "generate", recipe::Writes::Texts));
}

TEST(Import, AT5AnswersBetweenTheTokensOfItsFolderOrOfTheSamplesThatItLearned) {
  const Companions theirs(
      {{"vocab.txt", "[PAD]\n</s>\n[UNK]\n<extra_id_0>\na\n"},
       {"generation_config.json", R"({"eos_token_id": [4, 1], "pad_token_id": 0, "decoder_start_token_id": 2})"}},
      "tiny_t5");
  if (!fs::exists(theirs.folder())) GTEST_SKIP() << "tiny_t5 is not there";
  const fs::path ours = theirs.place.path() / "ours";
  import_weights(theirs.folder(), ours, {});
  const auto tokenizer = text::Tokenizer::load(companion_folder(ours));
  for (const fs::path& folder : {theirs.folder(), ours}) {
    EXPECT_NO_THROW(recipe::check_writes(model_config_of(folder), folder, "generate", recipe::Writes::TextsOrAnswers));
    expect_refused([&] { recipe::check_writes(model_config_of(folder), folder, "eval", recipe::Writes::Texts); },
                   {"eval", "T5"});
    const AnswerFrame frame = answer_frame(folder, tokenizer);
    EXPECT_EQ(frame.start, 2);
    EXPECT_EQ(frame.ends, (std::vector<std::int64_t>{4, 1}));
    EXPECT_EQ(frame.text_end, 1);
  }
  const fs::path run = run_of(theirs);
  const AnswerFrame frame = answer_frame(run, tokenizer);
  EXPECT_EQ(frame.start, 0);
  EXPECT_EQ(frame.ends, std::vector<std::int64_t>{1});
  EXPECT_EQ(frame.text_end, std::nullopt);
  EXPECT_EQ(export_config(run).token_ids.at("decoder_start_token_id"), "2");
  fs::remove(run / "generation_config.json");
  EXPECT_EQ(export_config(run).token_ids,
            (TokenIds{{"decoder_start_token_id", "0"}, {"eos_token_id", "1"}, {"pad_token_id", "0"}}));
}

TEST(Import, AFolderWithCheckpointsIsLeftAlone) {
  const fs::path folder = fs::path(unpacked_folder()) / "interchange/llama";
  TemporaryFolder place;
  import_weights(folder, place.path() / "ours", {});
  expect_refused([&] { import_weights(folder, place.path() / "ours", {}); }, {"must not hold checkpoints"});
}

}  // namespace
}  // namespace megatron::interchange
