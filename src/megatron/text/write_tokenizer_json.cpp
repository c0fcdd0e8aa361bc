#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/text/byte_level.h"
#include "megatron/text/tokenizer_files.h"

namespace megatron::text {
namespace {

using Json = nlohmann::ordered_json;

std::string quote(const std::string& spelling) { return Json(spelling).dump(); }

/// One value a line, so that the file can be read and compared.
std::string lines(const std::vector<std::string>& values, const char* indent) {
  std::string out;
  for (const std::string& value : values) out += concat(out.empty() ? "\n" : ",\n", indent, value);
  return out;
}

Json byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
}

Json normalizer(const Vocabulary& vocabulary) {
  if (!vocabulary.normalization) return nullptr;
  return {{"type", "BertNormalizer"},
          {"clean_text", vocabulary.normalization->clean_text},
          {"handle_chinese_chars", vocabulary.normalization->space_chinese},
          {"strip_accents", vocabulary.normalization->strip_accents},
          {"lowercase", vocabulary.normalization->lower_case}};
}

Json pre_tokenizer(const Vocabulary& vocabulary) {
  if (vocabulary.word_piece) return {{"type", "BertPreTokenizer"}};
  if (!vocabulary.split_digits) return byte_level();
  return {{"type", "Sequence"},
          {"pretokenizers", Json::array({{{"type", "Digits"}, {"individual_digits", true}}, byte_level()})}};
}

Json post_processor(const Vocabulary& vocabulary) {
  const Template& frame = vocabulary.frame;
  if (frame.single.empty() && frame.pair.empty()) return nullptr;
  Json tokens = Json::object();
  const auto side = [&](const std::vector<Template::Item>& items) {
    Json list = Json::array();
    for (const Template::Item& item : items) {
      const bool is_token = item.kind == Template::Kind::Token;
      const std::string name = is_token ? vocabulary.tokens[static_cast<std::size_t>(item.token)]
                               : item.kind == Template::Kind::First ? "A"
                                                                    : "B";
      list.push_back({{is_token ? "SpecialToken" : "Sequence", {{"id", name}, {"type_id", item.type}}}});
      if (is_token) tokens[name] = {{"id", name}, {"ids", {item.token}}, {"tokens", {name}}};
    }
    return list;
  };
  const Json single = side(frame.single), pair = side(frame.pair);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

Json decoder(const Vocabulary& vocabulary) {
  if (!vocabulary.word_piece) return byte_level();
  return {
      {"type", "WordPiece"}, {"prefix", vocabulary.word_piece->prefix}, {"cleanup", vocabulary.word_piece->cleanup}};
}

std::vector<std::string> added_tokens(const Vocabulary& vocabulary) {
  std::vector<std::string> tokens;
  for (const SpecialToken& token : vocabulary.specials)
    tokens.push_back(concat("{\"id\": ", token.id, ", \"content\": ", quote(token.content), ", \"single_word\": ",
                            token.single_word, ", \"lstrip\": ", token.lstrip, ", \"rstrip\": ", token.rstrip,
                            ", \"normalized\": ", token.normalized, ", \"special\": ", token.special, "}"));
  return tokens;
}

/// The model's members before its vocabulary.
std::string model_head(const Vocabulary& vocabulary) {
  if (const auto& piece = vocabulary.word_piece)
    return concat("    \"type\": \"WordPiece\",\n    \"unk_token\": ", quote(piece->unknown),
                  ",\n    \"continuing_subword_prefix\": ", quote(piece->prefix),
                  ",\n    \"max_input_chars_per_word\": ", piece->max_word_characters);
  return concat(
      "    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
      "    \"byte_fallback\": false,\n    \"ignore_merges\": ",
      vocabulary.ignore_merges);
}

}  // namespace

std::string to_tokenizer_json(const Vocabulary& vocabulary) {
  std::vector<bool> is_special(vocabulary.tokens.size(), vocabulary.word_piece.has_value());
  for (const SpecialToken& special : vocabulary.specials) is_special[static_cast<std::size_t>(special.id)] = true;
  std::vector<std::string> spellings, vocab, merges;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    spellings.push_back(is_special[id] ? vocabulary.tokens[id] : to_byte_level(vocabulary.tokens[id]));
    vocab.push_back(concat(quote(spellings.back()), ": ", id));
  }
  for (const auto& [left, right] : vocabulary.merges)
    merges.push_back(
        quote(spellings[static_cast<std::size_t>(left)] + " " + spellings[static_cast<std::size_t>(right)]));
  return concat(
      "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [",
      lines(added_tokens(vocabulary), "    "), "\n  ],\n  \"normalizer\": ", normalizer(vocabulary).dump(),
      ",\n  \"pre_tokenizer\": ", pre_tokenizer(vocabulary).dump(),
      ",\n  \"post_processor\": ", post_processor(vocabulary).dump(), ",\n  \"decoder\": ", decoder(vocabulary).dump(),
      ",\n  \"model\": {\n", model_head(vocabulary), ",\n    \"vocab\": {", lines(vocab, "      "), "\n    }",
      vocabulary.word_piece ? "" : concat(",\n    \"merges\": [", lines(merges, "      "), "\n    ]"), "\n  }\n}\n");
}

void write_tokenizer_json(const Vocabulary& vocabulary, const std::filesystem::path& folder) {
  make_folder(folder);
  write_file(folder / "tokenizer.json", to_tokenizer_json(vocabulary));
}

}  // namespace megatron::text
