// GGUF as bytes; tests/interop/test_gguf.py reads whole models with the package gguf.
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "megatron/families/hf_family.h"
#include "megatron/families/mapping.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/text/tokenizer.h"
#include "tests/interchange/support.h"

namespace megatron::interchange {
namespace {

namespace fs = std::filesystem;

/// Tensors of memory.
class Weights final : public checkpoint::WeightSource {
 public:
  std::map<std::string, at::Tensor> tensors_by_name;

  std::string name() const override { return "weights"; }
  std::vector<std::string> tensors() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_by_name) names.push_back(name);
    return names;
  }
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override {
    const auto found = tensors_by_name.find(tensor);
    if (found == tensors_by_name.end()) return nullptr;
    return &(shapes_[tensor] = found->second.sizes().vec());
  }
  std::string dtype(const std::string&) const override { return "F32"; }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override {
    at::Tensor part = tensors_by_name.at(tensor);
    for (std::size_t d = 0; d < box.shape.size(); ++d)
      part = part.narrow(static_cast<std::int64_t>(d), box.offset[d], box.shape[d]);
    into.copy_(part);
  }

 private:
  mutable std::map<std::string, std::vector<std::int64_t>> shapes_;
};

/// One layer of two heads of 16, which share a key and value; every matrix has rows of one block of Q8_0.
families::FolderConfig small_llama() {
  families::FolderConfig config;
  config.family = &families::hf_family("llama");
  config::ModelConfig& model = config.model;
  model.num_layers = 1;
  model.hidden_size = model.ffn_hidden_size = 32;
  model.num_attention_heads = 2;
  model.num_query_groups = 1;
  model.vocab_size = 3;
  model.max_position_embeddings = 8;
  model.normalization = "RMSNorm";
  model.activation = "silu";
  model.gated_linear_unit = true;
  model.add_bias_linear = false;
  model.position_embedding_type = "rope";
  model.untie_embeddings_and_output_weights = true;
  return config;
}

/// Zeros, but that each row of linear_qkv holds its number, from 100 on.
Weights weights_of(const families::FolderConfig& config) {
  Weights weights;
  for (const auto& [name, tensor] : config.family->written_table(families::shape_of(config.model), {})) {
    at::Tensor values = at::zeros(tensor.shape);
    if (name.find("linear_qkv") != std::string::npos)
      for (std::int64_t row = 0; row < tensor.shape[0]; ++row) values[row].fill_(100 + row);
    weights.tensors_by_name[name] = values;
  }
  return weights;
}

const WeightFormat& gguf() {
  for (const WeightFormat& format : weight_formats())
    if (std::string_view(format.words.name) == "gguf") return format;
  throw std::logic_error("there is no format gguf");
}

/// Reads values in their order; throws std::out_of_range behind the end.
class Cursor {
 public:
  explicit Cursor(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string take(std::size_t size) {
    if (at + size > bytes_.size()) throw std::out_of_range("behind the end of the file");
    at += size;
    return bytes_.substr(at - size, size);
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return take(number<std::uint64_t>()); }
  void skip_value(std::uint32_t type) {
    const std::map<std::uint32_t, std::size_t> sizes = {{4, 4}, {5, 4}, {6, 4}, {7, 1}};
    if (type == 8) {
      text();
    } else if (type == 9) {
      const auto inner = number<std::uint32_t>();
      for (auto count = number<std::uint64_t>(); count > 0; --count) skip_value(inner);
    } else {
      take(sizes.at(type));
    }
  }

  std::size_t at = 0;

 private:
  std::string bytes_;
};

struct Written {
  std::map<std::string, std::string> values;   // the bytes of each entry's value, without its type
  std::map<std::string, std::string> tensors;  // the bytes from each tensor's beginning to the file's end
  std::map<std::string, std::uint32_t> types;
  std::map<std::string, std::vector<std::uint64_t>> shapes;
  std::size_t size = 0;
};

/// Takes a file to pieces as the format's description has it, alignment included.
Written take_apart(const fs::path& path) {
  const std::string bytes = read_file(path);
  Cursor file(bytes);
  EXPECT_EQ(file.take(4), "GGUF");
  EXPECT_EQ(file.number<std::uint32_t>(), 3u);
  const auto tensors = file.number<std::uint64_t>(), entries = file.number<std::uint64_t>();
  Written written;
  for (std::uint64_t i = 0; i < entries; ++i) {
    const std::string key = file.text();
    const auto type = file.number<std::uint32_t>();
    const std::size_t begin = file.at;
    file.skip_value(type);
    EXPECT_TRUE(written.values.emplace(key, bytes.substr(begin, file.at - begin)).second) << key << " twice";
  }
  std::map<std::string, std::uint64_t> offsets;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    const std::string name = file.text();
    for (auto dimensions = file.number<std::uint32_t>(); dimensions > 0; --dimensions)
      written.shapes[name].push_back(file.number<std::uint64_t>());
    written.types[name] = file.number<std::uint32_t>();
    offsets[name] = file.number<std::uint64_t>();
  }
  const std::size_t data = (file.at + 31) / 32 * 32;
  for (const auto& [name, offset] : offsets) {
    EXPECT_EQ(offset % 32, 0u) << name;
    written.tensors[name] = bytes.substr(data + offset);
  }
  written.size = bytes.size();
  return written;
}

std::vector<float> floats(const std::string& bytes, std::size_t count) {
  std::vector<float> values(count);
  std::memcpy(values.data(), bytes.data(), count * sizeof(float));
  return values;
}

class Gguf : public ::testing::Test {
 protected:
  Written write(const Weights& weights, const families::FolderConfig& config, const std::string& dtype) {
    const fs::path path = place_.path() / ("model-" + dtype + ".gguf");
    gguf().write(weights, config, path, {.dtype = dtype, .tokenizer = {}});
    return take_apart(path);
  }

  TemporaryFolder place_;
};

TEST_F(Gguf, HasEntriesTensorsAndAlignedDataInThisOrder) {
  const families::FolderConfig config = small_llama();
  const Written file = write(weights_of(config), config, "float32");
  EXPECT_EQ(file.values.at("general.architecture").substr(8), "llama");
  EXPECT_EQ(file.values.at("general.alignment"), std::string("\x20\0\0\0", 4));
  EXPECT_EQ(file.values.at("llama.attention.head_count"), std::string("\2\0\0\0", 4));
  EXPECT_EQ(file.values.at("llama.attention.head_count_kv"), std::string("\1\0\0\0", 4));
  EXPECT_EQ(file.values.at("llama.rope.dimension_count"), std::string("\x10\0\0\0", 4));
  EXPECT_EQ(file.values.at("llama.rope.freq_base"), std::string("\0\x40\x1c\x46", 4));  // 10000 as a float
  EXPECT_EQ(file.values.at("tokenizer.ggml.model").substr(8), "no_vocab");
  EXPECT_EQ(file.tensors.size(), 12u);
  EXPECT_EQ(file.shapes.at("token_embd.weight"), (std::vector<std::uint64_t>{32, 3}));  // columns first
  EXPECT_EQ(file.shapes.at("blk.0.attn_k.weight"), (std::vector<std::uint64_t>{32, 16}));
  // The last is the output layer's 3 x 32 numbers, which end at a multiple of 32 bytes.
  EXPECT_EQ(file.tensors.at("output.weight").size(), 3u * 32 * 4);
}

TEST_F(Gguf, RowsOfQAndKAlternateBetweenTheHalvesOfAHeadInALlamaAlone) {
  families::FolderConfig config = small_llama();
  const Written llama = write(weights_of(config), config, "float32");
  config.model.add_qkv_bias = true;
  const Written qwen = write(weights_of(config), config, "bfloat16");
  EXPECT_EQ(qwen.values.at("general.architecture").substr(8), "qwen2");
  const auto first_of_rows = [](const Written& file, const std::string& name, std::size_t rows) {
    std::vector<float> values = floats(file.tensors.at(name), rows * 32), first;
    for (std::size_t row = 0; row < rows; ++row) first.push_back(values[row * 32]);
    return first;
  };
  const std::vector<float> head = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
  std::vector<float> q, k, v(16), bias(32);
  for (const float begin : {100, 116})
    for (const float row : head) q.push_back(begin + row);
  for (const float row : head) k.push_back(132 + row);
  std::iota(v.begin(), v.end(), 148.0f);
  std::iota(bias.begin(), bias.end(), 100.0f);
  EXPECT_EQ(first_of_rows(llama, "blk.0.attn_q.weight", 32), q);
  EXPECT_EQ(first_of_rows(llama, "blk.0.attn_k.weight", 16), k);
  EXPECT_EQ(first_of_rows(llama, "blk.0.attn_v.weight", 16), v);
  EXPECT_EQ(qwen.types.at("blk.0.attn_q.weight"), 30u);
  EXPECT_EQ(qwen.types.at("blk.0.attn_q.bias"), 0u);
  EXPECT_EQ(floats(qwen.tensors.at("blk.0.attn_q.bias"), 32), bias);
}

TEST_F(Gguf, ABlockOfQ8IsItsScaleAndItsRoundedLevels) {
  const families::FolderConfig config = small_llama();
  Weights weights = weights_of(config);
  at::Tensor& embedding = weights.tensors_by_name["embedding.word_embeddings.weight"];
  // The largest is 63.5 = 127 / 2, so the scale is 0.5 (0x3800) and levels are twice the numbers, halves away from 0.
  const std::vector<std::pair<float, int>> numbers = {{63.5f, 127}, {-63.5f, -127}, {0.25f, 1},   {-0.25f, -1},
                                                      {1.25f, 3},   {-1.25f, -3},   {0.24f, 0},   {1.1f, 2},
                                                      {31.f, 62},   {0.75f, 2},     {-2.75f, -6}, {0.f, 0}};
  std::string block("\0\x38", 2);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    embedding[0][static_cast<std::int64_t>(i)] = numbers[i].first;
    block += static_cast<char>(numbers[i].second);
  }
  block.resize(34, '\0');
  block.resize(68, '\0');      // a row of zeros
  embedding[2].fill_(1e-40f);  // too small for a scale
  block.resize(102, '\0');
  const Written file = write(weights, config, "q8_0");
  EXPECT_EQ(file.types.at("token_embd.weight"), 8u);
  EXPECT_EQ(file.types.at("output_norm.weight"), 0u);
  EXPECT_EQ(file.values.at("general.file_type"), std::string("\7\0\0\0", 4));
  EXPECT_EQ(file.tensors.at("token_embd.weight").substr(0, 102), block);

  embedding[1][3] = std::numeric_limits<float>::quiet_NaN();
  const fs::path path = place_.path() / "nan.gguf";
  expect_refused([&] { gguf().write(weights, config, path, {.dtype = "q8_0", .tokenizer = {}}); },
                 {"finite", "token_embd.weight"});
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(Gguf, WhatItCannotHoldIsRefusedAndNothingWritten) {
  const fs::path path = place_.path() / "model.gguf";
  const auto refused = [&](families::FolderConfig config, const std::vector<std::string>& words,
                           const fs::path& tokenizer = {}) {
    expect_refused(
        [&] { gguf().write(weights_of(small_llama()), config, path, {.dtype = "", .tokenizer = tokenizer}); }, words);
    EXPECT_FALSE(fs::exists(path));
  };
  families::FolderConfig gpt2 = small_llama(), gelu = gpt2, classes = gpt2, qwen = gpt2;
  gpt2.family = &families::hf_family("gpt2");
  refused(gpt2, {"Llama, Mistral or Qwen2", "fix:"});
  gelu.model.activation = "gelu";
  refused(gelu, {"silu", "activation gelu"});
  classes.model.head = "classes";
  refused(classes, {"head classes"});
  qwen.model.add_qkv_bias = true;
  qwen.model.rope_scaling_factor = 8;
  refused(qwen, {"rope_scaling_factor 8"});
  families::FolderConfig window = small_llama(), normed = small_llama();
  window.model.sliding_window = 4;
  refused(window, {"sliding_window 4"});
  normed.model.qk_layernorm = true;
  refused(normed, {"qk_layernorm true"});

  const fs::path bert = place_.path() / "bert";
  fs::create_directory(bert);
  write_file(bert / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n");
  refused(small_llama(), {"byte-level BPE", bert.string(), "--format huggingface"}, bert);

  write_file(path, "somebody's");
  expect_refused([&] { gguf().write(weights_of(small_llama()), small_llama(), path, {}); }, {"must not exist"});
  EXPECT_EQ(read_file(path), "somebody's");
}

TEST_F(Gguf, KeepsTwoEndsAndMergesThatAreNone) {
  const fs::path folder = place_.path() / "pair", path = place_.path() / "ends.gguf";
  fs::create_directory(folder);
  write_file(folder / "vocab.json", R"({"a": 0, "b": 1, "<|endoftext|>": 2})");
  write_file(folder / "merges.txt", "#version: 0.2\n");
  write_file(folder / "generation_config.json", R"({"eos_token_id": [2, 1, 0]})");
  gguf().write(weights_of(small_llama()), small_llama(), path, {.dtype = "float32", .tokenizer = folder});
  const Written file = take_apart(path);
  EXPECT_EQ(file.values.at("tokenizer.ggml.eos_token_id"), std::string("\2\0\0\0", 4));
  EXPECT_EQ(file.values.at("tokenizer.ggml.eot_token_id"), std::string("\1\0\0\0", 4));
  EXPECT_EQ(ids_of(read_token_ids(path), "eos_token_id"), (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(text::Tokenizer::load(path).encode("ab"), (std::vector<std::int32_t>{0, 1}));

  std::string bytes = read_file(path);
  const std::string key = "tokenizer.ggml.merges";
  bytes.replace(bytes.find(key), key.size(), "tokenizer.ggml.others");
  write_file(path, bytes);
  expect_refused([&] { text::Tokenizer::load(path); }, {"must have its merges", "--tokenizer FOLDER"});
}

/// Llama 3's factors are all that a file has of its scaling.
families::FolderConfig stretched_llama(std::int64_t original, double high = 4) {
  families::FolderConfig config = small_llama();
  config.model.max_position_embeddings = 384;
  config.model.rotary_base = 50000;
  config.model.rope_scaling_type = "llama3";
  config.model.rope_scaling_factor = 8;
  config.model.rope_low_freq_factor = 1;
  config.model.rope_high_freq_factor = high;
  config.model.rope_original_positions = original;
  return config;
}

TEST_F(Gguf, HasAScalingThatIsReadAgainOrIsNotWritten) {
  for (const std::int64_t original : {16, 48, 100, 4097, 8192, 8193}) {
    const families::FolderConfig config = stretched_llama(original);
    const fs::path path = place_.path() / concat("llama3-", original, ".gguf");
    gguf().write(weights_of(config), config, path, {.dtype = "float32", .tokenizer = {}});
    const config::ModelConfig again = gguf().model(path);
    EXPECT_EQ(again.rope_scaling_type, "llama3");
    EXPECT_EQ(again.rope_scaling_factor, 8);
    EXPECT_EQ(again.rope_original_positions, original);
  }
  const fs::path path = place_.path() / "other.gguf";
  const families::FolderConfig other = stretched_llama(100, 3);
  expect_refused([&] { gguf().write(weights_of(other), other, path, {.dtype = "float32", .tokenizer = {}}); },
                 {"high_freq_factor 3", "--format huggingface"});
  EXPECT_FALSE(fs::exists(path));
}

/// A file with one more entry, and one that keeps the data where it is.
std::string with_number(std::string bytes, const std::string& key, float value) {
  const auto append = [](std::string& to, const auto& number) {
    to.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  const auto name = [&](std::string& to, const std::string& of, std::uint32_t type) {
    append(to, std::uint64_t{of.size()});
    to += of;
    append(to, type);
  };
  std::string entries;
  name(entries, key, 6);
  append(entries, value);
  name(entries, "general.filler", 8);
  const std::uint64_t filler = 64 - (entries.size() + sizeof filler) % 32;
  append(entries, filler);
  entries.append(filler, ' ');
  std::uint64_t count = 0;
  constexpr std::size_t kCount = 16, kEntries = 24;
  std::memcpy(&count, bytes.data() + kCount, sizeof count);
  count += 2;
  std::memcpy(bytes.data() + kCount, &count, sizeof count);
  return bytes.insert(kEntries, entries);
}

TEST_F(Gguf, AFactorWithoutATypeIsThatOfLinearScaling) {  // llama.cpp's load_hparams
  const families::FolderConfig config = small_llama();
  const fs::path path = place_.path() / "plain.gguf", scaled = place_.path() / "scaled.gguf";
  gguf().write(weights_of(config), config, path, {.dtype = "float32", .tokenizer = {}});
  write_file(scaled, with_number(read_file(path), "llama.rope.scaling.factor", 4));
  EXPECT_EQ(gguf().model(path).rope_scaling_factor, 1);
  EXPECT_EQ(gguf().model(scaled).rope_scaling_factor, 4);
  EXPECT_EQ(gguf().model(scaled).rope_scaling_type, "linear");
  EXPECT_TRUE(read_whole(*gguf().weights(scaled), "output_layer.weight")
                  .equal(read_whole(*gguf().weights(path), "output_layer.weight")));
}

}  // namespace
}  // namespace megatron::interchange
