#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/files/hugging_face/json_component.h"
#include "megatron/text/files/hugging_face/pipeline_forms.h"
#include "megatron/text/files/hugging_face/pipeline_json.h"
#include "megatron/text/files/hugging_face/tokenizer_document.h"
#include "megatron/text/files/tekken_file.h"
#include "megatron/text/files/token_spellings.h"
#include "megatron/text/files/tokenizer_files.h"

// Each part of the file by itself: what a part means, and that nothing of it is overlooked.
namespace megatron::text {

Template roberta_template(std::int32_t cls, std::int32_t sep) {
  using Kind = Template::Kind;
  Template frame;
  frame.single = {{Kind::Token, cls, 0}, {Kind::First, 0, 0}, {Kind::Token, sep, 0}};
  frame.pair = frame.single;
  frame.pair.insert(frame.pair.end(), {{Kind::Token, sep, 0}, {Kind::Second, 0, 0}, {Kind::Token, sep, 0}});
  return frame;
}

namespace {

using nlohmann::json;

/// One side of a template. `special_tokens` of the file says which ids a name stands for.
std::vector<Template::Item> read_template(const Component& component, const char* key) {
  constexpr std::size_t kMaxItems = 4096;
  std::vector<Template::Item> items;
  const auto add = [&](const Template::Item& item) {
    if (items.size() == kMaxItems)
      component.refuse(concat(".", key, " must stand for at most ", kMaxItems, " items"), "more");
    items.push_back(item);
  };
  for (std::size_t i = 0; i < component.array_size(key); ++i) {
    const Component entry = component.at(key, i);
    entry.know({"SpecialToken", "Sequence"});
    const bool is_token = entry.has("SpecialToken");
    if (is_token == entry.has("Sequence")) entry.refuse("must be a SpecialToken or a Sequence", "both or neither");
    const Component part = entry.at(is_token ? "SpecialToken" : "Sequence");
    part.know({"id", "type_id"});
    const std::string name = part.text("id");
    Template::Item item;
    item.type = part.number("type_id");
    if (!is_token) {
      if (name != "A" && name != "B") part.refuse(".id must be A or B", name);
      item.kind = name == "A" ? Template::Kind::First : Template::Kind::Second;
      add(item);
      continue;
    }
    const Component token = component.at("special_tokens").at(name.c_str());
    token.know({"id", "ids", "tokens"});
    item.kind = Template::Kind::Token;
    for (std::size_t k = 0; k < token.array_size("ids"); ++k) {
      const json& id = token.get("ids")[k];
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
        token.refuse(".ids must be ids", shortened(id));
      item.token = static_cast<std::int32_t>(id.get<std::uint64_t>());
      add(item);
    }
  }
  return items;
}

/// [CLS] A [SEP], and B [SEP] of type 1 behind it.
Template bert_template(std::int32_t cls, std::int32_t sep) {
  using Kind = Template::Kind;
  Template frame;
  frame.single = {{Kind::Token, cls, 0}, {Kind::First, 0, 0}, {Kind::Token, sep, 0}};
  frame.pair = frame.single;
  frame.pair.insert(frame.pair.end(), {{Kind::Second, 0, 1}, {Kind::Token, sep, 1}});
  return frame;
}

std::int32_t token_of_pair(const Component& component, const char* key) {
  const json& pair = component.get(key);
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_unsigned() ||
      pair[1].get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
    component.refuse(concat(".", key, " must be a token and its id"), shortened(pair));
  return static_cast<std::int32_t>(pair[1].get<std::uint64_t>());
}

void set_frame(const Component& component, Template frame, Vocabulary& vocabulary) {
  if (!vocabulary.frame.single.empty() || !vocabulary.frame.pair.empty())
    component.refuse("must not set tokens around a text twice", shortened(component.get("type")));
  vocabulary.frame = std::move(frame);
}

/// Without trim_offsets the offsets stay as they are.
void read_trim_offsets(const Component& component, Vocabulary& vocabulary) {
  const bool add_prefix_space = component.boolean("add_prefix_space", true);
  if (component.boolean("trim_offsets", true)) vocabulary.trim_offsets = TrimOffsets{add_prefix_space};
}

void read_post_processor(const Component& component, Vocabulary& vocabulary, int depth = 0) {
  const std::string type = component.type();
  if (type == "ByteLevel") {
    component.know({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    read_trim_offsets(component, vocabulary);
  } else if (type == "TemplateProcessing") {
    component.know({"type", "single", "pair", "special_tokens"});
    set_frame(component, {.single = read_template(component, "single"), .pair = read_template(component, "pair")},
              vocabulary);
  } else if (type == "BertProcessing") {
    component.know({"type", "sep", "cls"});
    set_frame(component, bert_template(token_of_pair(component, "cls"), token_of_pair(component, "sep")), vocabulary);
  } else if (type == "RobertaProcessing") {
    component.know({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    read_trim_offsets(component, vocabulary);
    set_frame(component, roberta_template(token_of_pair(component, "cls"), token_of_pair(component, "sep")),
              vocabulary);
  } else if (type == "Sequence" && depth < 8) {
    component.know({"type", "processors"});
    for (std::size_t i = 0; i < component.array_size("processors"); ++i)
      read_post_processor(component.at("processors", i), vocabulary, depth + 1);
  } else {
    component.refuse(".type is no post-processor that is supported", in_quotes(type));
  }
}

SpecialToken read_added_token(const Component& token) {
  token.know({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  SpecialToken special;
  special.content = token.text("content");
  special.id = token.number("id");
  special.special = token.boolean("special", false);
  special.single_word = token.boolean("single_word", false);
  special.lstrip = token.boolean("lstrip", false);
  special.rstrip = token.boolean("rstrip", false);
  special.normalized = token.boolean("normalized", !special.special);
  if (special.content.empty()) token.refuse(".content must not be empty", "\"\"");
  return special;
}

/// model.vocab.
void read_tokens(const Component& model, const TokenizerDocument& file, SpellingReader& reader,
                 std::vector<SpecialToken> specials) {
  if (file.has_tokens)
    reader.read_tokens(file.tokens, std::move(specials));
  else
    reader.read_tokens(model.get("vocab"), std::move(specials));
}

/// model.merges.
void read_merges(const Component& model, const TokenizerDocument& file, SpellingReader& reader, const std::string& name,
                 std::string_view prefix) {
  std::size_t index = 0;
  const auto where = [&index] { return concat("merge ", index); };
  reader.reserve_merges(file.merges.size());
  for (const auto& [left, right] : file.merges) {
    reader.add_merge(left, right, where, prefix);
    ++index;
  }
  const json& merges = model.get("merges");
  if (!merges.is_array()) throw ConfigError(rule_got_fix(name + ": model.merges must be an array", shortened(merges)));
  for (const json& merge : merges) {  // those that are no list of the document
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      reader.add_merge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), where, prefix);
    } else {
      const std::string_view pair = merge.is_string() ? std::string_view(merge.get_ref<const std::string&>()) : "";
      const std::size_t space = pair.find(' ');
      if (space == std::string_view::npos || pair.find(' ', space + 1) != std::string_view::npos)
        throw ConfigError(rule_got_fix(name + ": a merge must be \"left right\" or [\"left\", \"right\"]",
                                       concat(where(), ": ", shortened(merge))));
      reader.add_merge(pair.substr(0, space), pair.substr(space + 1), where, prefix);
    }
    ++index;
  }
}

/// Byte-pair encoding over bytes.
Vocabulary read_bpe(const Component& model, const TokenizerDocument& file, std::vector<SpecialToken> specials,
                    const std::string& name) {
  model.must_be_neutral("continuing_subword_prefix", "");
  model.must_be_neutral("end_of_word_suffix", "");
  model.must_be_neutral("byte_fallback", false);
  SpellingReader reader(name, SpellingReader::Spelling::ByteLevel);
  read_tokens(model, file, reader, std::move(specials));
  read_merges(model, file, reader, name, "");
  if (model.has("unk_token"))  // never used where every byte is a token
    for (int byte = 0; byte < 256; ++byte)
      if (reader.id_of(to_byte_level(std::string(1, static_cast<char>(byte)))) < 0)
        model.refuse(".vocab must have every byte where .unk_token is set", concat("no token for byte ", byte));
  return reader.take();
}

Vocabulary read_character_bpe(const Component& model, const TokenizerDocument& file, std::vector<SpecialToken> specials,
                              const std::string& name) {
  CharacterBpe options;
  if (model.has("unk_token")) options.unknown = model.text("unk_token");
  options.fuse_unknown = model.boolean("fuse_unk", false);
  options.byte_fallback = model.boolean("byte_fallback", false);
  if (model.has("continuing_subword_prefix")) options.prefix = model.text("continuing_subword_prefix");
  if (model.has("end_of_word_suffix")) options.suffix = model.text("end_of_word_suffix");
  SpellingReader reader(name, SpellingReader::Spelling::Plain);
  read_tokens(model, file, reader, std::move(specials));
  read_merges(model, file, reader, name, options.prefix);
  Vocabulary vocabulary = reader.take();
  vocabulary.characters = std::move(options);
  return vocabulary;
}

Vocabulary read_any_bpe(const Component& model, const TokenizerDocument& file, std::vector<SpecialToken> specials,
                        const std::string& name, bool bytes) {
  model.know({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  model.must_be_neutral("dropout", 0.0);
  if (model.has("unk_token")) model.text("unk_token");
  model.boolean("fuse_unk", false);
  Vocabulary vocabulary = bytes ? read_bpe(model, file, std::move(specials), name)
                                : read_character_bpe(model, file, std::move(specials), name);
  vocabulary.ignore_merges = model.boolean("ignore_merges", false);
  return vocabulary;
}

/// The tokens of models that spell them as they are, and have no merges.
Vocabulary read_plain_tokens(const Component& model, const TokenizerDocument& file, std::vector<SpecialToken> specials,
                             const std::string& name) {
  SpellingReader reader(name, SpellingReader::Spelling::Plain);
  read_tokens(model, file, reader, std::move(specials));
  return reader.take();
}

Vocabulary read_word_piece(const Component& model, const TokenizerDocument& file, std::vector<SpecialToken> specials,
                           const std::string& name) {
  model.know({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPiece piece;
  piece.unknown = model.text("unk_token");
  piece.prefix = model.text("continuing_subword_prefix");
  piece.max_word_characters = model.number("max_input_chars_per_word");
  Vocabulary vocabulary = read_plain_tokens(model, file, std::move(specials), name);
  vocabulary.word_piece = std::move(piece);
  return vocabulary;
}

Vocabulary read_word_level(const Component& model, const TokenizerDocument& file, std::vector<SpecialToken> specials,
                           const std::string& name) {
  model.know({"type", "vocab", "unk_token"});
  WordLevel words;
  if (model.has("unk_token")) words.unknown = model.text("unk_token");
  Vocabulary vocabulary = read_plain_tokens(model, file, std::move(specials), name);
  vocabulary.word_level = std::move(words);
  return vocabulary;
}

void check_no_token_twice(const Component& model, const std::vector<SpelledToken>& tokens) {
  TokenIndex seen;
  seen.reserve(tokens.size());
  for (const auto& [spelling, id] : tokens)
    if (!seen.emplace(spelling, id).second)
      model.refuse(concat(".vocab[", id, "] must be another token than those before"),
                   shortened(json(std::string(spelling))));
}

/// A list of tokens with their scores; ids are their places in it.
Vocabulary read_unigram(const Component& model, const TokenizerDocument&, std::vector<SpecialToken> specials,
                        const std::string& name) {
  model.know({"type", "unk_id", "vocab", "byte_fallback"});
  Unigram unigram;
  std::vector<SpelledToken> tokens;
  for (std::size_t i = 0; i < model.array_size("vocab"); ++i) {
    const json& entry = model.get("vocab")[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      model.refuse(concat(".vocab[", i, "] must be a token and its score"), shortened(entry));
    tokens.push_back({entry[0].get_ref<const std::string&>(), static_cast<std::int32_t>(i)});
    unigram.scores.push_back(entry[1].get<double>());
  }
  check_no_token_twice(model, tokens);
  if (model.has("unk_id")) unigram.unknown = model.number("unk_id");
  unigram.byte_fallback = model.boolean("byte_fallback", false);
  SpellingReader reader(name, SpellingReader::Spelling::Plain);
  reader.read_tokens(tokens, std::move(specials));
  Vocabulary vocabulary = reader.take();
  vocabulary.unigram = std::move(unigram);
  return vocabulary;
}

Vocabulary read_model(const Component& model, const TokenizerDocument& file, std::vector<SpecialToken> specials,
                      const std::string& name, bool bytes) {
  std::string type = model.has("type") ? model.text("type") : "BPE";
  if (type == "BPE") return read_any_bpe(model, file, std::move(specials), name, bytes);
  const auto read = type == "WordPiece"   ? read_word_piece
                    : type == "Unigram"   ? read_unigram
                    : type == "WordLevel" ? read_word_level
                                          : nullptr;
  if (read == nullptr) model.refuse(".type must be BPE, WordPiece, Unigram or WordLevel", in_quotes(type));
  if (bytes)
    model.refuse(".type must be BPE where the text is spelled in byte characters (others are not supported)", type);
  return read(model, file, std::move(specials), name);
}

/// Whether the steps spell text in byte characters. That must be the last step, so that no other sees the spelling.
bool spells_bytes(const Component& root, const Pipeline& pipeline) {
  const auto is_byte_normalizer = [](const Normalizer& n) { return std::holds_alternative<normalizer::ByteLevel>(n); };
  const auto is_byte_pre_tokenizer = [](const PreTokenizer& p) {
    return std::holds_alternative<pretokenizer::ByteLevel>(p);
  };
  const auto& normalizers = pipeline.normalizers;
  const auto& pre_tokenizers = pipeline.pre_tokenizers;
  const auto count = std::count_if(normalizers.begin(), normalizers.end(), is_byte_normalizer) +
                     std::count_if(pre_tokenizers.begin(), pre_tokenizers.end(), is_byte_pre_tokenizer);
  if (count == 0) return false;
  const bool last =
      pre_tokenizers.empty() ? is_byte_normalizer(normalizers.back()) : is_byte_pre_tokenizer(pre_tokenizers.back());
  if (count > 1 || !last) root.refuse("must have ByteLevel once, as the last step before the model", "another order");
  return true;
}

void check_decoders(const Component& root, const Pipeline& pipeline, bool bytes) {
  const auto is_bytes = [](const Decoder& d) { return std::holds_alternative<decoder::ByteLevel>(d); };
  const auto count = std::count_if(pipeline.decoders.begin(), pipeline.decoders.end(), is_bytes);
  if (bytes ? count != 1 || pipeline.decoders.size() != 1 : count != 0)
    root.refuse(bytes ? "decoder must be ByteLevel where the pre-tokenizer is" : "decoder must not be ByteLevel here",
                concat(pipeline.decoders.size(), " decoders, ", count, " of them ByteLevel"));
}

/// How a caller would cut and fill batches: no part of the tokens of a text. Gives those parts that are there.
std::vector<std::string> read_batching(const Component& root) {
  std::vector<std::string> parts;
  if (root.has("truncation")) {
    root.at("truncation").know({"max_length", "strategy", "stride", "direction"});
    parts.emplace_back("truncation");
  }
  if (root.has("padding")) {
    root.at("padding").know({"strategy", "direction", "pad_to_multiple_of", "pad_id", "pad_type_id", "pad_token"});
    parts.emplace_back("padding");
  }
  return parts;
}

}  // namespace

Vocabulary parse_tokenizer_json(std::string_view text, const std::string& name) {
  const TokenizerDocument file = read_tokenizer_document(text, name);
  if (is_tekken(file.root)) return parse_tekken(file.root, name, {"tekken.json", std::string(text)});
  const Component root(file.root, name + ": ");
  root.know({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
             "decoder", "model"});
  root.must_be_neutral("version", "1.0");
  std::vector<std::string> not_applied = read_batching(root);
  std::vector<SpecialToken> specials;
  for (std::size_t i = 0; i < root.array_size("added_tokens"); ++i)
    specials.push_back(read_added_token(root.at("added_tokens", i)));

  Pipeline pipeline;
  if (root.has("normalizer")) pipeline.normalizers = read_normalizers(root.at("normalizer"));
  if (root.has("pre_tokenizer")) pipeline.pre_tokenizers = read_pre_tokenizers(root.at("pre_tokenizer"));
  if (root.has("decoder")) pipeline.decoders = read_decoders(root.at("decoder"));
  const bool bytes = spells_bytes(root, pipeline);
  check_decoders(root, pipeline, bytes);
  Vocabulary vocabulary = read_model(root.at("model"), file, std::move(specials), name, bytes);
  vocabulary.pipeline = std::move(pipeline);
  use_scanners(vocabulary);
  if (root.has("post_processor")) read_post_processor(root.at("post_processor"), vocabulary);
  vocabulary.not_applied = std::move(not_applied);
  return vocabulary;
}

Vocabulary bert_vocabulary(std::vector<std::string> tokens, const std::vector<std::string>& specials,
                           const BertNormalization& normalization) {
  Vocabulary vocabulary;
  vocabulary.tokens = std::move(tokens);
  const auto id_of = [&](std::string_view token) -> std::int32_t {
    const auto found = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), token);
    return found == vocabulary.tokens.end() ? -1 : static_cast<std::int32_t>(found - vocabulary.tokens.begin());
  };
  for (const std::string& special : specials)
    if (id_of(special) >= 0) vocabulary.specials.push_back({special, id_of(special)});
  vocabulary.normalization = normalization;
  vocabulary.word_piece.emplace();
  if (id_of("[CLS]") >= 0 && id_of("[SEP]") >= 0) vocabulary.frame = bert_template(id_of("[CLS]"), id_of("[SEP]"));
  return vocabulary;
}

Vocabulary parse_vocab_txt(std::string_view text, const std::string& name, const BertNormalization& normalization) {
  std::vector<std::string> tokens;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty())
      throw ConfigError(rule_got_fix(concat(name, ": each line must be a token"), concat("none at byte ", at)));
    if (!valid_utf8(line))  // tokenizer.json, which a run saves, cannot hold it
      throw ConfigError(rule_got_fix(concat(name, ", line ", tokens.size() + 1, ": a token must be UTF-8."),
                                     in_quotes(line),
                                     "copy the file again, or turn it into UTF-8: iconv -f latin1 -t utf-8"));
    tokens.emplace_back(line);
    at = end + 1;
  }
  return bert_vocabulary(std::move(tokens), {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}, normalization);
}

}  // namespace megatron::text
