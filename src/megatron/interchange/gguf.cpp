// GGUF, version 3: llama.cpp's one file of a model, with its tokenizer. What is written, and in which order of rows,
// follows its convert_hf_to_gguf.py; the layout (base/files/gguf.h) follows the package gguf (constants.py,
// gguf_writer.py, quants.py). gguf_read.cpp reads it.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/gguf.h"
#include "megatron/families/hf_family.h"
#include "megatron/families/json.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/gguf_blocks.h"
#include "megatron/interchange/gguf_read.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/mapped_source.h"
#include "megatron/kernels/quantized/blocks.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/files/gguf_tokenizer.h"
#include "megatron/text/files/sentencepiece_file.h"
#include "megatron/text/tokenizer.h"
#include "megatron/text/vocabulary.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr std::uint32_t kVersion = 3, kAlignment = 32;
constexpr std::uint32_t kQuantizationVersion = 2;
constexpr std::int64_t kBlock = kernels::kQuantizedBlock;
constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 21;
constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 24;
constexpr const char* kOtherFormat = "--format huggingface";

using Type = GgufType;

/// LlamaFileType: what most tensors are.
std::uint32_t file_type(Type type) {
  switch (type) {
    case Type::F32:
      return 0;
    case Type::F16:
      return 1;
    case Type::Q4_0:
      return 2;
    case Type::Q4_1:
      return 3;
    case Type::Q8_0:
      return 7;
    case Type::Q4_K:
      return 14;
    default:
      return 32;
  }
}

bool in_blocks(Type type) { return gguf_block(type).numbers > 1; }

/// The entries before the tensors.
class Metadata {
 public:
  void add(const std::string& key, std::uint32_t value) { entry(key, 4, value); }
  void add(const std::string& key, float value) { entry(key, 6, value); }
  void add(const std::string& key, bool value) { entry(key, 7, static_cast<std::uint8_t>(value)); }
  void add(const std::string& key, const std::string& value) {
    begin(key, 8);
    put_text(value);
  }
  void add(const std::string& key, const std::vector<std::int32_t>& values) { list(key, 5, values); }
  void add(const std::string& key, const std::vector<float>& values) { list(key, 6, values); }
  void add(const std::string& key, const std::vector<std::string>& values) {
    begin(key, 9);
    put(std::uint32_t{8});
    put(std::uint64_t{values.size()});
    for (const std::string& value : values) put_text(value);
  }

  /// What follows are tensors' descriptions, which are written with the same two:
  template <class T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(const std::string& text) {
    put(std::uint64_t{text.size()});
    bytes_ += text;
  }

  const std::string& bytes() const { return bytes_; }
  std::uint64_t count() const { return count_; }

 private:
  void begin(const std::string& key, std::uint32_t type) {
    ++count_;
    put_text(key);
    put(type);
  }
  template <class T>
  void entry(const std::string& key, std::uint32_t type, T value) {
    begin(key, type);
    put(value);
  }
  template <class T>
  void list(const std::string& key, std::uint32_t type, const std::vector<T>& values) {
    begin(key, 9);
    put(type);
    put(std::uint64_t{values.size()});
    for (const T value : values) put(value);
  }

  std::string bytes_;
  std::uint64_t count_ = 0;
};

// ---- the tokenizer

/// gguf's TokenType: SentencePiece's own numbers.
using TokenType = text::SentencePiece::Type;
std::int32_t number_of(TokenType type) { return static_cast<std::int32_t>(type); }

struct Tokens {
  std::string model, pre;
  std::vector<std::string> tokens = {}, merges = {};
  std::vector<std::int32_t> types = {};
  std::vector<float> scores = {};  // SentencePiece's
  bool space_prefix = false;
};

/// llama.cpp's name of how a byte-level tokenizer cuts text into words; none where it knows no such way. It reads text
/// as it is: like its converter this takes Qwen2's NFC, which changes no text that is composed, for nothing.
std::optional<std::string> name_of_cuts(const text::Vocabulary& vocabulary) {
  if (!vocabulary.pipeline) {
    if (vocabulary.normalization || vocabulary.ignore_merges) return std::nullopt;
    return vocabulary.split_digits ? "smollm" : "gpt-2";
  }
  const auto& [normalizers, cuts, decoders] = *vocabulary.pipeline;
  const bool composes =
      normalizers == std::vector<text::Normalizer>{text::normalizer::UnicodeForm{.compose = true, .compatible = false}};
  for (const auto& [name, ignores_merges] : {std::pair{"llama-bpe", true}, {"qwen2", false}}) {
    if (cuts == text::gguf_cuts(name) && vocabulary.ignore_merges == ignores_merges &&
        (normalizers.empty() || composes))
      return name;
  }
  return std::nullopt;
}

/// Of tokens that a file adds to the model's: llama.cpp takes those that look special for such.
TokenType type_of(const text::SpecialToken& token) {
  const std::string& text = token.content;
  return token.special || (text.starts_with("<|") && text.ends_with("|>")) ? TokenType::Control
                                                                           : TokenType::UserDefined;
}

/// Byte-level BPE: tokens and merges spelled as in GPT-2's files, added tokens as they are in a text.
std::optional<Tokens> byte_level_tokens(const text::Vocabulary& vocabulary) {
  if (vocabulary.word_piece || vocabulary.unigram || vocabulary.characters || vocabulary.sentence_piece ||
      vocabulary.word_level || vocabulary.equal_ranks)
    return std::nullopt;
  const auto cuts = name_of_cuts(vocabulary);
  if (!cuts) return std::nullopt;
  Tokens result{.model = "gpt2", .pre = *cuts};
  for (const std::string& token : vocabulary.tokens) {
    result.tokens.push_back(text::to_byte_level(token));
    result.types.push_back(number_of(token.empty() ? TokenType::Unused : TokenType::Normal));
  }
  for (const text::SpecialToken& special : vocabulary.specials) {
    result.tokens.at(static_cast<std::size_t>(special.id)) = special.content;
    result.types.at(static_cast<std::size_t>(special.id)) = number_of(type_of(special));
  }
  const auto spelled = [&](std::int32_t id) {
    return text::to_byte_level(vocabulary.tokens.at(static_cast<std::size_t>(id)));
  };
  for (const auto& [left, right] : vocabulary.merges) result.merges.push_back(spelled(left) + " " + spelled(right));
  return result;
}

/// A SentencePiece model of type BPE, as Llama 2's and Mistral's tokenizer.model. `added`: tokens that other files of
/// the folder add.
std::optional<Tokens> sentence_piece_tokens(const text::Vocabulary& vocabulary,
                                            const std::vector<text::SpecialToken>& added) {
  const auto& pieces = vocabulary.sentence_piece;
  if (!pieces || pieces->unigram || !pieces->byte_fallback || !vocabulary.pipeline) return std::nullopt;
  const auto& normalizers = vocabulary.pipeline->normalizers;
  const auto* text = normalizers.size() == 1 ? std::get_if<text::normalizer::SentencePiece>(&normalizers[0]) : nullptr;
  if (text == nullptr || !text->charsmap.empty() || text->remove_extra_spaces || !text->escape_spaces ||
      text->space_is_suffix)
    return std::nullopt;
  Tokens result{.model = "llama", .pre = "default", .tokens = vocabulary.tokens, .scores = pieces->scores};
  result.space_prefix = text->add_dummy_prefix || !vocabulary.pipeline->pre_tokenizers.empty();  // those mark the text
  for (const auto type : pieces->types) result.types.push_back(static_cast<std::int32_t>(type));
  for (const text::SpecialToken& token : added) {
    const auto id = static_cast<std::size_t>(token.id);
    if (id >= result.tokens.size()) {
      result.tokens.resize(id + 1);
      result.types.resize(id + 1, number_of(TokenType::Unused));
      result.scores.resize(id + 1, -10000);
    }
    result.tokens[id] = token.content;
    result.types[id] = number_of(type_of(token));
    result.scores[id] = -1000;  // as the converter has it: no merge makes it
  }
  return result;
}

/// What a folder says of its tokenizer beside the tokens.
struct Conventions {
  std::map<std::string, std::int64_t> ids;  // "bos": 1
  bool add_bos = false, add_eos = false;
  std::string chat_template;
};

std::string text_of_template(const fs::path& folder, const json& config) {
  if (fs::is_regular_file(folder / "chat_template.jinja"))
    return read_file(folder / "chat_template.jinja", kMaxConfigBytes);
  const json found = config.value("chat_template", json());
  if (found.is_string()) return found.get<std::string>();
  for (const json& named : found.is_array() ? found : json::array())  // several, each for a use
    if (named.is_object() && named.value("name", json()) == "default" && named.value("template", json()).is_string())
      return named["template"].get<std::string>();
  return "";
}

/// tokenizer_config.json names tokens; ids of generation_config.json and config.json stand where it names none.
Conventions conventions_of(const fs::path& folder, const text::Tokenizer& tokenizer, const TokenIds& known) {
  const fs::path file = folder / "tokenizer_config.json";
  const json config = fs::is_regular_file(file)
                          ? families::parse_json_object(read_file(file, kMaxConfigBytes), file.string())
                          : json::object();
  Conventions result;
  TokenIds ids = read_token_ids(folder);
  ids.insert(known.begin(), known.end());
  for (const auto& [name, entry] :
       {std::pair{"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}}) {
    json token = config.value(entry, json());
    if (token.is_object()) token = token.value("content", json());
    const auto id = token.is_string() ? tokenizer.token_to_id(token.get<std::string>()) : std::nullopt;
    const auto given = ids_of(ids, std::string(entry) + "_id");
    if (id || !given.empty()) result.ids[name] = id ? *id : given.front();
  }
  for (const std::int64_t end : ids_of(ids, "eos_token_id"))  // texts end there too; for a third there is no entry
    if (end != result.ids.at("eos")) result.ids.emplace("eot", end);
  result.add_bos = config.value("add_bos_token", json()) == true;
  result.add_eos = config.value("add_eos_token", json()) == true;
  using Kind = text::Template::Kind;
  const auto& frame = tokenizer.vocabulary().frame.single;
  if (!frame.empty()) {
    result.add_bos = frame.front().kind == Kind::Token;
    result.add_eos = frame.back().kind == Kind::Token;
  }
  result.chat_template = text_of_template(folder, config);
  return result;
}

Tokens tokens_of(const fs::path& folder, const text::Tokenizer& tokenizer) {
  const text::Vocabulary& vocabulary = tokenizer.vocabulary();
  std::optional<Tokens> tokens = byte_level_tokens(vocabulary);
  const fs::path pieces = folder / "tokenizer.model";
  if (!tokens && vocabulary.sentence_piece)
    tokens = sentence_piece_tokens(vocabulary, {});
  else if (!tokens && fs::is_regular_file(pieces))  // tokenizer.json has no scores
    tokens = sentence_piece_tokens(
        text::parse_sentencepiece_model(read_file(pieces), pieces.string(), pieces.filename().string()),
        vocabulary.specials);
  if (!tokens)
    throw ConfigError(
        rule_got_fix("export: a GGUF file can hold a byte-level BPE tokenizer that cuts text as GPT-2, SmolLM, Llama 3 "
                     "or Qwen2 do, or the tokenizer.model of a SentencePiece BPE with byte fallback.",
                     concat("another tokenizer in ", folder.string()), kOtherFormat));
  return *std::move(tokens);
}

/// `rows`: of the embedding, one for each token; those past the tokenizer's get a name that is never written.
void add_tokenizer(Metadata& metadata, const fs::path& folder, const TokenIds& known, std::int64_t rows) {
  if (folder.empty()) {  // llama.cpp then takes ids alone
    metadata.add("tokenizer.ggml.model", std::string("no_vocab"));
    return;
  }
  const auto tokenizer = text::Tokenizer::load(folder);
  Tokens tokens = tokens_of(folder, tokenizer);
  const Conventions conventions = conventions_of(folder, tokenizer, known);
  const auto size = static_cast<std::size_t>(rows);
  if (tokens.tokens.size() > size)
    throw ConfigError(rule_got_fix("export: each token of the tokenizer must have its row in the embedding.",
                                   concat(tokens.tokens.size(), " tokens in ", folder.string(), ", ", rows, " rows"),
                                   "copy the files of the model's tokenizer into the weights' folder"));
  tokens.tokens.resize(size);
  tokens.types.resize(size, number_of(TokenType::Unused));
  if (!tokens.scores.empty()) tokens.scores.resize(size, -10000);
  for (std::size_t i = 0; i < size; ++i)
    if (tokens.types[i] == number_of(TokenType::Unused) && tokens.tokens[i].empty())
      tokens.tokens[i] = concat("[PAD", i, "]");

  metadata.add("tokenizer.ggml.model", tokens.model);
  metadata.add("tokenizer.ggml.pre", tokens.pre);
  metadata.add("tokenizer.ggml.tokens", tokens.tokens);
  if (!tokens.scores.empty()) metadata.add("tokenizer.ggml.scores", tokens.scores);
  metadata.add("tokenizer.ggml.token_type", tokens.types);
  if (tokens.model == "gpt2") metadata.add("tokenizer.ggml.merges", tokens.merges);
  for (const auto& [name, id] : conventions.ids) {
    if (id >= rows)
      throw ConfigError(rule_got_fix(concat("export: the ", name, " token must be one of the tokenizer's."), concat(id),
                                     concat("name one below ", rows, " in ", folder.string(), "/config.json")));
    metadata.add(concat("tokenizer.ggml.", name, "_token_id"), static_cast<std::uint32_t>(id));
  }
  metadata.add("tokenizer.ggml.add_bos_token", conventions.add_bos);
  metadata.add("tokenizer.ggml.add_eos_token", conventions.add_eos);
  metadata.add("tokenizer.ggml.add_space_prefix", tokens.space_prefix);
  if (!conventions.chat_template.empty()) metadata.add("tokenizer.chat_template", conventions.chat_template);
}

// ---- the network

/// llama.cpp's Qwen2 has biases of q, k and v alone and rotates halves of a head, as Hugging Face does; its Llama
/// rotates neighbours.
std::string architecture_of(const config::ModelConfig& model) {
  return model.add_qkv_bias && !model.add_bias_linear ? "qwen2" : "llama";
}

/// Throws ConfigError for a scaling of Llama 3's that could not be read again of its factors, all that a file has.
void check_scaling(const config::ModelConfig& model) {
  if (model.rope_scaling_factor == 1 ||
      find_llama3_scaling(rope_factors(model, families::shape_of(model).head()), model.rotary_base, 1e-6))
    return;
  throw ConfigError(rule_got_fix(
      "export: a GGUF file has Llama 3's scaling as factors, of which low_freq_factor 1 and high_freq_factor 4 alone "
      "can be read again.",
      concat("low_freq_factor ", model.rope_low_freq_factor, ", high_freq_factor ", model.rope_high_freq_factor,
             ", factor ", model.rope_scaling_factor, ", original_max_position_embeddings ",
             model.rope_original_positions),
      kOtherFormat));
}

/// Throws ConfigError for a model that no architecture of llama.cpp known here computes.
void check_model(const families::FolderConfig& config) {
  const config::ModelConfig& model = config.model;
  const bool scaled = model.rope_scaling_factor != 1;
  if (config.family == &families::hf_family("llama") && model.head == "tokens" && model.activation == "silu" &&
      !(scaled && architecture_of(model) == "qwen2") && !(scaled && model.rope_scaling_type != "llama3") &&
      model == config::LayerVariant{} && model == config::AttentionVariant{.add_qkv_bias = model.add_qkv_bias})
    return check_scaling(model);
  throw ConfigError(rule_got_fix(
      "export: a GGUF file can hold a Llama, Mistral or Qwen2 with its output layer: RMSNorm, rope (scaled in a Llama "
      "alone), a gated silu unit, no qk_layernorm, sliding_window or experts.",
      concat("architecture ", model.architecture, ", head ", model.head, ", normalization ", model.normalization,
             ", position_embedding_type ", model.position_embedding_type, ", rope_scaling_factor ",
             model.rope_scaling_factor, ", activation ", model.activation, ", add_qkv_bias ", model.add_qkv_bias,
             ", qk_layernorm ", model.qk_layernorm, ", sliding_window ", model.sliding_window),
      kOtherFormat));
}

void add_network(Metadata& metadata, const families::FolderConfig& config, const std::string& name, Type type) {
  const config::ModelConfig& model = config.model;
  const plan::ModelShape shape = families::shape_of(model);
  const std::string architecture = architecture_of(model);
  const auto size = [&](const char* key, std::int64_t value) {
    metadata.add(architecture + "." + key, static_cast<std::uint32_t>(value));
  };
  metadata.add("general.architecture", architecture);
  metadata.add("general.type", std::string("model"));
  if (!name.empty()) metadata.add("general.name", name);
  metadata.add("general.alignment", kAlignment);
  metadata.add("general.file_type", file_type(type));
  metadata.add("general.quantization_version", kQuantizationVersion);
  size("block_count", shape.num_layers);
  size("context_length", model.max_position_embeddings);
  size("embedding_length", shape.hidden);
  size("feed_forward_length", shape.ffn_hidden);
  size("attention.head_count", shape.num_heads);
  size("attention.head_count_kv", shape.groups());
  size("attention.key_length", shape.head());
  size("attention.value_length", shape.head());
  size("rope.dimension_count", shape.head());
  size("vocab_size", shape.vocab);
  metadata.add(architecture + ".rope.freq_base", static_cast<float>(model.rotary_base));
  metadata.add(architecture + ".attention.layer_norm_rms_epsilon", static_cast<float>(model.layernorm_epsilon));
}

}  // namespace

std::vector<float> rope_factors(const config::ModelConfig& model, std::int64_t head) {
  const auto dim = static_cast<double>(head);
  const double low = model.rope_low_freq_factor, high = model.rope_high_freq_factor;
  std::vector<float> factors;
  for (double i = 0; i < dim; i += 2) {
    const double turns = static_cast<double>(model.rope_original_positions) * std::pow(model.rotary_base, -i / dim) /
                         (2 * std::numbers::pi);
    const double smooth = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - smooth) / model.rope_scaling_factor + smooth)));
  }
  return factors;
}

namespace {

// ---- the tensors

struct Tensor {
  std::string name, source;         // in the file; of the Hugging Face folder
  std::vector<std::int64_t> shape;  // rows first
  Type type = Type::F32;
  std::int64_t head = 0;           // rows of a head whose two halves alternate in the file; 0: rows as they are
  std::vector<float> values = {};  // instead of a source

  std::int64_t columns() const { return shape.size() > 1 ? shape[1] : 1; }
  std::uint64_t bytes() const {
    const GgufBlock block = gguf_block(type);
    return static_cast<std::uint64_t>(shape[0] * columns() / block.numbers * block.bytes);
  }
};

/// The tensors in the order of the forward pass. Vectors are float32, matrices of the vocabulary Q8_0 where others are
/// in fewer bits (plan/parameters/blocks.h), and what has no rows of whole blocks float16, or of Q4_K first Q4_1.
std::vector<Tensor> tensors_of(const MappedSource& theirs, const config::ModelConfig& model, Type type) {
  const bool llama = architecture_of(model) == "llama";
  std::vector<Tensor> tensors;
  const auto add = [&](const std::string& name, const std::string& source, std::int64_t head = 0) {
    const auto* shape = theirs.shape(source);
    if (shape == nullptr) return;  // biases, a tied output
    const bool words = name == "token_embd.weight" || name == "output.weight";
    const Type wanted = words && in_blocks(type) ? Type::Q8_0 : type;
    const auto fits = [&](Type blocks) { return shape->back() % gguf_block(blocks).numbers == 0; };
    tensors.push_back({.name = name,
                       .source = source,
                       .shape = *shape,
                       .type = shape->size() == 1                         ? Type::F32
                               : fits(wanted)                             ? wanted
                               : wanted == Type::Q4_K && fits(Type::Q4_1) ? Type::Q4_1
                                                                          : Type::F16,
                       .head = head});
  };
  if (llama && model.rope_scaling_factor != 1) {
    const std::vector<float> factors = rope_factors(model, families::shape_of(model).head());
    tensors.push_back({.name = "rope_freqs.weight",
                       .source = "",
                       .shape = {static_cast<std::int64_t>(factors.size())},
                       .values = factors});
  }
  add("token_embd.weight", "model.embed_tokens.weight");
  const std::int64_t head = families::shape_of(model).head();
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer)
    for (const auto& [ours, hugging_face] : kGgufLayer)
      for (const char* part : {".weight", ".bias"}) {
        const bool rotated = llama && (std::string_view(ours) == "attn_q" || std::string_view(ours) == "attn_k");
        add(concat("blk.", layer, ".", ours, part), concat("model.layers.", layer, ".", hugging_face, part),
            rotated ? head : 0);
      }
  add("output_norm.weight", "model.norm.weight");
  add("output.weight", "lm_head.weight");
  return tensors;
}

std::string quantized(std::span<const float> x, const Tensor& tensor) {
  const GgufBlock blocks = gguf_block(tensor.type);
  const auto numbers = static_cast<std::size_t>(blocks.numbers), size = static_cast<std::size_t>(blocks.bytes);
  std::string bytes(x.size() / numbers * size, '\0');
  std::atomic<bool> all_finite = true;
  constexpr std::int64_t kTogether = 64;
  at::parallel_for(0, std::ssize(x) / blocks.numbers, kTogether, [&](std::int64_t from, std::int64_t to) {
    bool finite = true;
    const auto put = [&](std::size_t i, const auto& block) {
      std::memcpy(bytes.data() + i * size, block.data(), size);
    };
    for (auto i = static_cast<std::size_t>(from); i < static_cast<std::size_t>(to); ++i) {
      const std::span<const float> rest = x.subspan(i * numbers);
      if (tensor.type == Type::Q4_K)
        put(i, q4_k_block(rest.first<256>(), finite));
      else
        put(i, kernels::quantize_block(tensor.type, rest.first<kBlock>(), finite));
    }
    if (!finite) all_finite = false;
  });
  if (!all_finite)
    throw ConfigError(rule_got_fix(
        concat("export: weights in blocks must be finite, also as scales in half precision: ", tensor.name),
        "inf, nan or beyond it", "--dtype fp32, which keeps them"));
  return bytes;
}

/// Throws ConfigError where a number that goes into a block is not finite.
void write_values(AtomicFile& file, const at::Tensor& values, const Tensor& tensor) {
  if (in_blocks(tensor.type)) {
    file.write(quantized({values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel())}, tensor));
    return;
  }
  const at::Tensor stored = values.to(tensor.type == Type::F16    ? at::kHalf
                                      : tensor.type == Type::BF16 ? at::kBFloat16
                                                                  : at::kFloat);
  file.write({static_cast<const std::byte*>(stored.const_data_ptr()), static_cast<std::size_t>(stored.nbytes())});
}

/// Some rows at a time. Of a rotated matrix row (half h, i) of a head goes to 2 i + h (LlamaModel.permute).
void write_tensor(AtomicFile& file, const MappedSource& theirs, const Tensor& tensor) {
  if (!tensor.values.empty()) return file.write(std::as_bytes(std::span(tensor.values)));
  const std::int64_t rows = tensor.shape[0], unit = std::max<std::int64_t>(tensor.head, 1);
  const std::int64_t step = std::max<std::int64_t>(1, kElementsAtOnce / tensor.columns() / unit) * unit;
  for (std::int64_t begin = 0; begin < rows; begin += step) {
    checkpoint::Box box{std::vector<std::int64_t>(tensor.shape.size(), 0), tensor.shape};
    box.offset[0] = begin;
    box.shape[0] = std::min(step, rows - begin);
    at::Tensor values = at::empty(box.shape, at::kFloat);
    theirs.read(tensor.source, box, values);
    if (tensor.head > 0) values = values.view({-1, 2, tensor.head / 2, tensor.columns()}).transpose(1, 2).contiguous();
    write_values(file, values, tensor);
  }
}

std::uint64_t padded(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void pad(AtomicFile& file) { file.write(std::string(padded(file.size()) - file.size(), '\0')); }

Type type_of(const std::string& dtype, const checkpoint::WeightSource& weights) {
  for (const auto& [name, type] : families::kBlockTypes)
    if (dtype == name) return type;
  if (dtype == families::kBlocksOf256.first) return families::kBlocksOf256.second;
  const std::string stored = weights.dtype("embedding.word_embeddings.weight");
  if (dtype == "float16" || (dtype.empty() && stored == "F16")) return Type::F16;
  if (dtype == "bfloat16" || (dtype.empty() && stored == "BF16")) return Type::BF16;
  return Type::F32;
}

void write_gguf(const checkpoint::WeightSource& weights, const families::FolderConfig& config, const fs::path& path,
                const ExportOptions& options) {
  check_model(config);
  if (fs::exists(path))
    throw ConfigError(rule_got_fix(concat(path.string(), ": must not exist."), "it is there", "name another --output"));
  const MappedSource theirs =
      all_under(weights, families::inverted(config.family->written_table(families::shape_of(config.model), {})));
  const Type type = type_of(options.dtype, weights);
  const std::vector<Tensor> tensors = tensors_of(theirs, config.model, type);
  Metadata metadata;
  add_network(metadata, config, path.stem().string(), type);
  add_tokenizer(metadata, options.tokenizer, config.token_ids, config.model.vocab_size);
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    metadata.put_text(tensor.name);
    metadata.put(static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      metadata.put(static_cast<std::uint64_t>(*size));
    metadata.put(static_cast<std::uint32_t>(tensor.type));
    metadata.put(offset);
    offset += padded(tensor.bytes());
  }

  AtomicFile file(path);
  file.write("GGUF");
  file.write_value(kVersion);
  file.write_value(std::uint64_t{tensors.size()});
  file.write_value(metadata.count());
  file.write(metadata.bytes());
  for (const Tensor& tensor : tensors) {
    pad(file);
    write_tensor(file, theirs, tensor);
  }
  pad(file);
  file.commit();
}

}  // namespace

WeightFormat gguf_format() {
  return {.words = families::kGgufWords,
          .detect = is_gguf,
          .model = [](const fs::path& file) { return read_gguf_config(file).model; },
          .config = read_gguf_config,
          .weights = open_gguf,
          .knows_training = false,
          .companions = [](const fs::path& file) { return gguf_has_tokenizer(file) ? file : fs::path(); },
          .config_json = [](const fs::path& file) { return gguf_config_json(file); },
          .write = write_gguf};
}

}  // namespace megatron::interchange
