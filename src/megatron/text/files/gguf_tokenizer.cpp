#include "megatron/text/files/gguf_tokenizer.h"

#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/text/protobuf.h"
#include "megatron/text/files/sentencepiece_file.h"
#include "megatron/text/files/token_spellings.h"

namespace megatron::text {
namespace {

constexpr const char* kOther = "name the folder of the model's tokenizer: --tokenizer FOLDER";

/// gguf's TokenType: SentencePiece's own numbers.
using Kind = SentencePiece::Type;
bool is_kind(std::int64_t number, Kind kind) { return number == static_cast<std::int64_t>(kind); }

using Texts = std::vector<std::string_view>;

template <class T>
T value_or(const Gguf& file, std::string_view key, T otherwise) {
  const T* value = file.find<T>(key);
  return value == nullptr ? otherwise : *value;
}

struct Tokens {
  std::span<const std::string_view> tokens;
  std::vector<std::int64_t> kinds;

  std::optional<std::int32_t> id(const Gguf& file, const char* name) const {
    const auto* id = file.find<std::int64_t>(concat("tokenizer.ggml.", name, "_token_id"));
    if (id == nullptr) return std::nullopt;
    if (*id < 0 || static_cast<std::size_t>(*id) >= tokens.size())
      throw ConfigError(rule_got_fix(concat(file.name(), ": the ", name, " token must be one of the tokenizer's."),
                                     concat(*id, ", of ", tokens.size(), " tokens")));
    return static_cast<std::int32_t>(*id);
  }
};

Tokens tokens_of(const Gguf& file) {
  const Texts* tokens = file.find<Texts>("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->empty() || tokens->size() >= std::size_t{1} << 31)
    throw ConfigError(
        rule_got_fix(concat(file.name(), ": must have a tokenizer."), "no tokenizer.ggml.tokens", kOther));
  Tokens result{.tokens = *tokens,
                .kinds = std::vector<std::int64_t>(tokens->size(), static_cast<std::int64_t>(Kind::Normal))};
  if (const auto* kinds = file.find<std::vector<std::int64_t>>("tokenizer.ggml.token_type")) {
    if (kinds->size() != tokens->size())
      throw ConfigError(
          rule_got_fix(concat(file.name(), ": tokenizer.ggml.token_type must have a number for each token."),
                       concat(kinds->size(), ", of ", tokens->size(), " tokens")));
    result.kinds = *kinds;
  }
  return result;
}

/// Begins and ends texts as the file says; where it leaves that open as llama.cpp does, which begins texts of Llama's.
void add_frame(const Gguf& file, const Tokens& tokens, Vocabulary& vocabulary) {
  using Item = Template::Item;
  const auto kept = [&](const char* name, const char* flag, bool otherwise) {
    const auto id = tokens.id(file, name);
    return id && value_or(file, flag, otherwise) ? id : std::nullopt;
  };
  const bool begins = value_or(file, "tokenizer.ggml.model", std::string_view()) == "llama" ||
                      value_or(file, "tokenizer.ggml.pre", std::string_view()) == "llama-bpe";
  const auto bos = kept("bos", "tokenizer.ggml.add_bos_token", begins),
             eos = kept("eos", "tokenizer.ggml.add_eos_token", false);
  vocabulary.end_of_text = tokens.id(file, "eos");
  if (!bos && !eos) return;
  for (auto* items : {&vocabulary.frame.single, &vocabulary.frame.pair}) {
    if (bos) items->push_back({Template::Kind::Token, *bos, 0});
    items->push_back(Item{Template::Kind::First, 0, 0});
    if (items == &vocabulary.frame.pair) items->push_back(Item{Template::Kind::Second, 0, 0});
    if (eos) items->push_back({Template::Kind::Token, *eos, 0});
  }
}

Vocabulary read_byte_level(const Gguf& file, const Tokens& tokens) {
  const std::string_view cuts = value_or(file, "tokenizer.ggml.pre", std::string_view());
  const bool scanned = cuts == "gpt-2" || cuts == "smollm";
  if (!scanned && gguf_cuts(cuts).empty())
    throw ConfigError(rule_got_fix(
        concat(file.name(), ": tokenizer.ggml.pre must be gpt-2, smollm, llama-bpe or qwen2, to cut text exactly so."),
        concat("\"", printable(cuts.substr(0, 60)), "\""), kOther));
  SpellingReader reader(file.name());
  std::vector<SpelledToken> spelled;
  std::vector<SpecialToken> specials;
  for (std::size_t i = 0; i < tokens.tokens.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const std::int64_t kind = tokens.kinds[i];
    if (is_kind(kind, Kind::Unused)) continue;
    if (is_kind(kind, Kind::Control) || is_kind(kind, Kind::UserDefined))
      specials.push_back({.content = std::string(tokens.tokens[i]), .id = id, .special = is_kind(kind, Kind::Control)});
    else
      spelled.push_back({tokens.tokens[i], id});
  }
  reader.read_tokens(spelled, std::move(specials));
  const Texts* const merges = file.find<Texts>("tokenizer.ggml.merges");
  if (merges == nullptr)  // without them every text would become single bytes
    throw ConfigError(rule_got_fix(concat(file.name(), ": a tokenizer of model gpt2 must have its merges."),
                                   "no tokenizer.ggml.merges", kOther));
  for (const std::string_view merge : *merges) {
    const std::size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos)
      throw ConfigError(rule_got_fix(concat(file.name(), ": a merge must be two tokens with one space between."),
                                     concat("\"", printable(merge.substr(0, 60)), "\"")));
    reader.add_merge(merge.substr(0, space), merge.substr(space + 1),
                     [&] { return concat("\"", printable(merge.substr(0, 60)), "\""); });
  }
  Vocabulary vocabulary = reader.take();
  vocabulary.split_digits = cuts == "smollm";
  vocabulary.ignore_merges = cuts == "llama-bpe";
  if (!scanned) {
    vocabulary.pipeline.emplace();
    vocabulary.pipeline->pre_tokenizers = gguf_cuts(cuts);
    vocabulary.pipeline->decoders = {decoder::ByteLevel{}};
    if (cuts == "qwen2")
      vocabulary.pipeline->normalizers = {normalizer::UnicodeForm{.compose = true, .compatible = false}};
  }
  return vocabulary;
}

/// As the file of SentencePiece that its parts come from, which is then read as such (sentencepiece_model.proto).
Vocabulary read_sentence_piece(const Gguf& file, const Tokens& tokens) {
  const auto* scores = file.find<std::vector<double>>("tokenizer.ggml.scores");
  if (scores == nullptr || scores->size() != tokens.tokens.size())
    throw ConfigError(rule_got_fix(concat(file.name(), ": tokenizer.ggml.scores must have a number for each token."),
                                   concat(scores == nullptr ? 0 : scores->size(), ", of ", tokens.tokens.size())));
  ProtobufMessage model;
  bool has_bytes = false;
  for (std::size_t i = 0; i < tokens.tokens.size(); ++i) {
    has_bytes = has_bytes || is_kind(tokens.kinds[i], Kind::Byte);
    ProtobufMessage piece;
    piece.bytes(1, tokens.tokens[i]).single(2, static_cast<float>((*scores)[i]));
    piece.integer(3, static_cast<std::uint64_t>(tokens.kinds[i]));
    model.bytes(1, piece.encoded());
  }
  constexpr std::uint64_t kBpe = 2;
  ProtobufMessage trainer, normalizer;
  trainer.integer(3, kBpe).integer(35, has_bytes ? 1 : 0);
  normalizer.bytes(1, "identity").integer(3, value_or(file, "tokenizer.ggml.add_space_prefix", true) ? 1 : 0);
  normalizer.integer(4, value_or(file, "tokenizer.ggml.remove_extra_whitespaces", false) ? 1 : 0).integer(5, 1);
  model.bytes(2, trainer.encoded()).bytes(3, normalizer.encoded());
  return parse_sentencepiece_model(model.encoded(), file.name(), "tokenizer.model");
}

}  // namespace

std::vector<PreTokenizer> gguf_cuts(std::string_view name) {
  const std::string words = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
  const std::string rest = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string numbers = name == "llama-bpe" ? R"(\p{N}{1,3})" : name == "qwen2" ? R"(\p{N})" : "";
  if (numbers.empty()) return {};
  return {pretokenizer::Split{.pattern = {words + numbers + rest, /*is_regex=*/true}},
          pretokenizer::ByteLevel{.add_prefix_space = false, .use_regex = false}};
}

bool has_gguf_tokenizer(const Gguf& file) { return file.entries().contains("tokenizer.ggml.tokens"); }

Vocabulary read_gguf_tokenizer(const Gguf& file) {
  const Tokens tokens = tokens_of(file);
  const std::string_view model = value_or(file, "tokenizer.ggml.model", std::string_view());
  if (model != "gpt2" && model != "llama")
    throw ConfigError(rule_got_fix(concat(file.name(), ": tokenizer.ggml.model must be gpt2 or llama."),
                                   concat("\"", printable(model.substr(0, 60)), "\""), kOther));
  Vocabulary vocabulary = model == "gpt2" ? read_byte_level(file, tokens) : read_sentence_piece(file, tokens);
  add_frame(file, tokens, vocabulary);
  return vocabulary;
}

std::string gguf_chat_template(const Gguf& file) {
  return std::string(value_or(file, "tokenizer.chat_template", std::string_view()));
}

std::map<std::string, std::string> gguf_named_tokens(const Gguf& file) {
  std::map<std::string, std::string> named;
  if (!has_gguf_tokenizer(file)) return named;
  const Tokens tokens = tokens_of(file);
  for (const auto& [theirs, ours] :
       {std::pair{"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}})
    if (const auto id = tokens.id(file, theirs)) named[ours] = tokens.tokens[static_cast<std::size_t>(*id)];
  return named;
}

}  // namespace megatron::text
