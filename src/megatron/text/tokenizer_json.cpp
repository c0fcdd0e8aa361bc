#include <functional>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/text/json_component.h"
#include "megatron/text/token_spellings.h"
#include "megatron/text/tokenizer_files.h"

// Each part of the file by itself: what a part means, and that nothing of it is overlooked.
namespace megatron::text {
namespace {

using nlohmann::json;

/// A component of type ByteLevel. Only a pre-tokenizer's members change tokens; trim_offsets never does.
void read_byte_level(const Component& component, bool is_pre_tokenizer) {
  component.know({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  component.boolean("trim_offsets", true);
  if (component.boolean("add_prefix_space", true) && is_pre_tokenizer)
    component.refuse(".add_prefix_space must be false (true is not supported)", "true");
  if (!component.boolean("use_regex", true) && is_pre_tokenizer)
    component.refuse(".use_regex must be true (false is not supported)", "false");
}

/// ByteLevel, or Digits before it, for BPE; BertPreTokenizer for WordPiece.
void read_pre_tokenizer(const Component& component, Vocabulary& vocabulary) {
  if (vocabulary.word_piece) {
    if (component.type() != "BertPreTokenizer")
      component.refuse(".type must be \"BertPreTokenizer\" for WordPiece", component.type());
    return component.know({"type"});
  }
  if (component.type() == "ByteLevel") return read_byte_level(component, true);
  if (component.type() != "Sequence")
    component.refuse(".type must be \"ByteLevel\", or a Sequence of Digits and it, for BPE",
                     shortened(component.get("type")));
  component.know({"type", "pretokenizers"});
  if (component.array_size("pretokenizers") != 2)
    component.refuse(".pretokenizers must be Digits and ByteLevel",
                     concat(component.array_size("pretokenizers"), " of them"));
  const Component digits = component.at("pretokenizers", 0), bytes = component.at("pretokenizers", 1);
  if (digits.type() != "Digits") digits.refuse(".type must be \"Digits\"", digits.type());
  digits.know({"type", "individual_digits"});
  if (!digits.boolean("individual_digits", false))
    digits.refuse(".individual_digits must be true (false is not supported)", "false");
  if (bytes.type() != "ByteLevel") bytes.refuse(".type must be \"ByteLevel\"", bytes.type());
  read_byte_level(bytes, true);
  vocabulary.split_digits = true;
}

BertNormalization read_normalizer(const Component& component) {
  if (component.type() != "BertNormalizer")
    component.refuse("must be null or a BertNormalizer (others are not supported)", shortened(component.get("type")));
  component.know({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  BertNormalization bert;
  bert.clean_text = component.boolean("clean_text", true);
  bert.space_chinese = component.boolean("handle_chinese_chars", true);
  bert.lower_case = component.boolean("lowercase", true);
  bert.strip_accents = component.boolean("strip_accents", bert.lower_case);
  return bert;
}

void read_decoder(const Component& component, Vocabulary& vocabulary) {
  const char* expected = vocabulary.word_piece ? "WordPiece" : "ByteLevel";
  if (component.type() != expected)
    component.refuse(concat(".type must be \"", expected, "\" here"), shortened(component.get("type")));
  if (!vocabulary.word_piece) return read_byte_level(component, false);
  component.know({"type", "prefix", "cleanup"});
  if (component.text("prefix") != vocabulary.word_piece->prefix)
    component.refuse(".prefix must be the model's", component.text("prefix"));
  vocabulary.word_piece->cleanup = component.boolean("cleanup", true);
}

/// One side of a template. `special_tokens` of the file says which ids a name stands for.
std::vector<Template::Item> read_template(const Component& component, const char* key) {
  std::vector<Template::Item> items;
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
      items.push_back(item);
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
      items.push_back(item);
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

void read_post_processor(const Component& component, Template& frame) {
  const std::string type = component.type();
  if (type == "ByteLevel") return read_byte_level(component, false);
  if (type == "TemplateProcessing") {
    component.know({"type", "single", "pair", "special_tokens"});
    frame = {.single = read_template(component, "single"), .pair = read_template(component, "pair")};
  } else if (type == "BertProcessing") {
    component.know({"type", "sep", "cls"});
    frame = bert_template(token_of_pair(component, "cls"), token_of_pair(component, "sep"));
  } else {
    component.refuse(".type must be ByteLevel, TemplateProcessing or BertProcessing (others are not supported)", type);
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

void read_merges(const json& merges, SpellingReader& reader, const std::string& name) {
  if (!merges.is_array()) throw ConfigError(rule_got_fix(name + ": model.merges must be an array", shortened(merges)));
  std::size_t index = 0;
  for (const json& merge : merges) {
    const std::string where = concat("merge ", index++);
    const auto& ref = merge;
    if (ref.is_array() && ref.size() == 2 && ref[0].is_string() && ref[1].is_string()) {
      reader.add_merge(ref[0].get_ref<const std::string&>(), ref[1].get_ref<const std::string&>(), where);
      continue;
    }
    const std::string_view pair = ref.is_string() ? std::string_view(ref.get_ref<const std::string&>()) : "";
    const std::size_t space = pair.find(' ');
    if (space == std::string_view::npos || pair.find(' ', space + 1) != std::string_view::npos)
      throw ConfigError(rule_got_fix(name + ": a merge must be \"left right\" or [\"left\", \"right\"]",
                                     concat(where, ": ", shortened(ref))));
    reader.add_merge(pair.substr(0, space), pair.substr(space + 1), where);
  }
}

Vocabulary read_bpe(const Component& model, std::vector<SpecialToken> specials, const std::string& name) {
  model.know({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  model.must_be_neutral("dropout", 0.0);
  model.must_be_neutral("continuing_subword_prefix", "");
  model.must_be_neutral("end_of_word_suffix", "");
  model.must_be_neutral("byte_fallback", false);
  model.boolean("fuse_unk", false);  // as unk_token: never used where every byte is a token
  if (model.has("unk_token")) model.text("unk_token");
  SpellingReader reader(name, SpellingReader::Spelling::ByteLevel);
  reader.read_tokens(model.get("vocab"), std::move(specials));
  read_merges(model.get("merges"), reader, name);
  if (model.has("unk_token"))
    for (int byte = 0; byte < 256; ++byte)
      if (reader.id_of(to_byte_level(std::string(1, static_cast<char>(byte)))) < 0)
        model.refuse(".vocab must have every byte where .unk_token is set", concat("no token for byte ", byte));
  Vocabulary vocabulary = reader.take();
  vocabulary.ignore_merges = model.boolean("ignore_merges", false);
  return vocabulary;
}

Vocabulary read_word_piece(const Component& model, std::vector<SpecialToken> specials, const std::string& name) {
  model.know({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPiece piece;
  piece.unknown = model.text("unk_token");
  piece.prefix = model.text("continuing_subword_prefix");
  piece.max_word_characters = model.number("max_input_chars_per_word");
  SpellingReader reader(name, SpellingReader::Spelling::Plain);
  reader.read_tokens(model.get("vocab"), std::move(specials));
  Vocabulary vocabulary = reader.take();
  vocabulary.word_piece = std::move(piece);
  return vocabulary;
}

/// How a caller would cut and fill batches: no part of the tokens of a text.
void read_batching(const Component& root) {
  if (root.has("truncation")) root.at("truncation").know({"max_length", "strategy", "stride", "direction"});
  if (root.has("padding"))
    root.at("padding").know({"strategy", "direction", "pad_to_multiple_of", "pad_id", "pad_type_id", "pad_token"});
}

}  // namespace

Vocabulary parse_tokenizer_json(std::string_view text, const std::string& name) {
  const json file = parse_json(text, name);
  const Component root(file, name + ": ");
  root.know({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
             "decoder", "model"});
  root.must_be_neutral("version", "1.0");
  read_batching(root);
  std::vector<SpecialToken> specials;
  for (std::size_t i = 0; i < root.array_size("added_tokens"); ++i)
    specials.push_back(read_added_token(root.at("added_tokens", i)));

  const Component model = root.at("model");
  const std::string type = model.has("type") ? model.text("type") : "BPE";
  if (type != "BPE" && type != "WordPiece")
    model.refuse(".type must be \"BPE\" or \"WordPiece\" (others are not supported)", type);
  Vocabulary vocabulary =
      type == "BPE" ? read_bpe(model, std::move(specials), name) : read_word_piece(model, std::move(specials), name);
  if (root.has("normalizer")) vocabulary.normalization = read_normalizer(root.at("normalizer"));
  read_pre_tokenizer(root.at("pre_tokenizer"), vocabulary);
  read_decoder(root.at("decoder"), vocabulary);
  if (root.has("post_processor")) read_post_processor(root.at("post_processor"), vocabulary.frame);
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
    tokens.emplace_back(line);
    at = end + 1;
  }
  return bert_vocabulary(std::move(tokens), {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}, normalization);
}

}  // namespace megatron::text
