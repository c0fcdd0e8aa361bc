#include <nlohmann/json.hpp>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/files/hugging_face/pipeline_forms.h"
#include "megatron/text/files/hugging_face/pipeline_json.h"
#include "megatron/text/files/sentencepiece_file.h"
#include "megatron/text/files/sentinels.h"
#include "megatron/text/files/tokenizer_files.h"

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

Json frame_json(const Vocabulary& vocabulary) {
  const Template& frame = vocabulary.frame;
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

Json post_processor(const Vocabulary& vocabulary) {
  Json steps = Json::array();
  if (const auto& trim = vocabulary.trim_offsets)
    steps.push_back({{"type", "ByteLevel"},
                     {"add_prefix_space", trim->add_prefix_space},
                     {"trim_offsets", true},
                     {"use_regex", true}});
  if (!vocabulary.frame.single.empty() || !vocabulary.frame.pair.empty()) steps.push_back(frame_json(vocabulary));
  if (steps.empty()) return nullptr;
  return steps.size() == 1 ? steps[0] : Json{{"type", "Sequence"}, {"processors", steps}};
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
Json model_head(const Vocabulary& vocabulary) {
  if (const auto& piece = vocabulary.word_piece)
    return {{"type", "WordPiece"},
            {"unk_token", piece->unknown},
            {"continuing_subword_prefix", piece->prefix},
            {"max_input_chars_per_word", piece->max_word_characters}};
  const auto text_or_null = [](const std::optional<std::string>& text) { return text ? Json(*text) : Json(); };
  if (const auto& words = vocabulary.word_level)
    return {{"type", "WordLevel"}, {"unk_token", text_or_null(words->unknown)}};
  if (const auto& unigram = vocabulary.unigram)
    return {{"type", "Unigram"},
            {"unk_id", unigram->unknown < 0 ? Json() : Json(unigram->unknown)},
            {"byte_fallback", unigram->byte_fallback}};
  const CharacterBpe bytes, &characters = vocabulary.characters ? *vocabulary.characters : bytes;
  const auto null_where_empty = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", text_or_null(characters.unknown)},
          {"continuing_subword_prefix", null_where_empty(characters.prefix)},
          {"end_of_word_suffix", null_where_empty(characters.suffix)},
          {"fuse_unk", characters.fuse_unknown},
          {"byte_fallback", characters.byte_fallback},
          {"ignore_merges", vocabulary.ignore_merges}};
}

/// Spelling of each id: in byte characters where the model's tokens are bytes.
std::vector<std::string> spellings_of(const Vocabulary& vocabulary) {
  std::vector<bool> as_it_is(vocabulary.tokens.size(), !is_byte_level(vocabulary));
  for (const SpecialToken& special : vocabulary.specials) as_it_is[static_cast<std::size_t>(special.id)] = true;
  std::vector<std::string> spellings;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id)
    spellings.push_back(as_it_is[id] ? vocabulary.tokens[id] : to_byte_level(vocabulary.tokens[id]));
  return spellings;
}

/// The model's vocabulary, and its merges.
std::string model_tables(const Vocabulary& vocabulary) {
  const std::vector<std::string> spellings = spellings_of(vocabulary);
  std::vector<std::string> vocab, merges;
  if (const auto& unigram = vocabulary.unigram) {
    for (std::size_t id = 0; id < unigram->scores.size(); ++id)
      vocab.push_back(Json::array({spellings[id], unigram->scores[id]}).dump());
    return concat("    \"vocab\": [", lines(vocab, "      "), "\n    ]");
  }
  std::vector<bool> is_outside(spellings.size());
  for (const SpecialToken& special : vocabulary.specials)
    is_outside[static_cast<std::size_t>(special.id)] = special.outside;
  for (std::size_t id = 0; id < spellings.size(); ++id)
    if (!spellings[id].empty() && !is_outside[id]) vocab.push_back(concat(quote(spellings[id]), ": ", id));
  std::string tables = concat("    \"vocab\": {", lines(vocab, "      "), "\n    }");
  if (vocabulary.word_piece || vocabulary.word_level) return tables;
  for (const auto& [left, right] : vocabulary.merges) {
    const std::string &a = spellings[static_cast<std::size_t>(left)], &b = spellings[static_cast<std::size_t>(right)];
    // A space, which byte characters have none of, would hide where the halves meet.
    merges.push_back(is_byte_level(vocabulary) ? quote(a + " " + b) : Json::array({a, b}).dump());
  }
  return tables + concat(",\n    \"merges\": [", lines(merges, "      "), "\n    ]");
}

/// What add_pieces_beside() reads, of that which the file of a SentencePiece model does not say itself.
void describe_pieces(const Vocabulary& vocabulary, Json& fields) {
  const SourceFile& source = *vocabulary.source;
  const Vocabulary file = parse_sentencepiece_model(source.bytes, source.name, source.name);
  Json added = Json::object();
  for (const SpecialToken& token : vocabulary.specials) {
    const auto id = static_cast<std::size_t>(token.id);
    const bool own = id < file.tokens.size() && file.sentence_piece->types[id] == SentencePiece::Type::Control;
    const bool plain = token.special && !token.single_word && !token.lstrip && !token.rstrip;
    if ((own && plain) || token.content.starts_with("<extra_id_")) continue;
    added[std::to_string(token.id)] = {{"content", token.content}, {"single_word", token.single_word},
                                       {"lstrip", token.lstrip},   {"rstrip", token.rstrip},
                                       {"normalized", false},      {"special", token.special}};
  }
  if (!added.empty()) fields["added_tokens_decoder"] = added;
  const auto name = [&](const Template::Item& item, const char* key, const char* flag) {
    if (item.kind != Template::Kind::Token) return;
    fields[key] = vocabulary.tokens[static_cast<std::size_t>(item.token)];
    fields[flag] = true;
  };
  if (const auto& frame = vocabulary.frame.single; !frame.empty()) {
    name(frame.front(), "bos_token", "add_bos_token");
    name(frame.back(), "eos_token", "add_eos_token");
  }
  if (vocabulary.pipeline && !vocabulary.pipeline->pre_tokenizers.empty()) {
    fields["tokenizer_class"] = "LlamaTokenizer";
    fields["legacy"] = false;
  }
}

}  // namespace

std::string to_tokenizer_json(const Vocabulary& vocabulary) {
  if (vocabulary.sentence_piece) throw std::logic_error("tokenizer.json cannot hold SentencePiece's own models");
  const Pipeline pipeline = pipeline_of(vocabulary);
  std::string head;
  const Json members = model_head(vocabulary);
  for (const auto& [key, value] : members.items()) head += concat("    ", quote(key), ": ", value.dump(), ",\n");
  return concat("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [",
                lines(added_tokens(vocabulary), "    "),
                "\n  ],\n  \"normalizer\": ", to_json(pipeline.normalizers).dump(),
                ",\n  \"pre_tokenizer\": ", to_json(pipeline.pre_tokenizers).dump(),
                ",\n  \"post_processor\": ", post_processor(vocabulary).dump(),
                ",\n  \"decoder\": ", to_json(pipeline.decoders).dump(), ",\n  \"model\": {\n", head,
                model_tables(vocabulary), "\n  }\n}\n");
}

void write_vocabulary(const Vocabulary& vocabulary, const std::filesystem::path& folder) {
  make_folder(folder);
  if (const auto& source = vocabulary.source)
    write_file(folder / source->name, source->bytes);
  else
    write_file(folder / "tokenizer.json", to_tokenizer_json(vocabulary));
  const auto config = folder / "tokenizer_config.json";  // one that is there may say more
  if (std::filesystem::exists(config)) return;
  Json fields = Json::object();
  if (vocabulary.end_of_text)
    fields["eos_token"] = vocabulary.tokens[static_cast<std::size_t>(*vocabulary.end_of_text)];
  if (const std::size_t sentinels = count_sentinels(vocabulary); sentinels > 0) fields["extra_ids"] = sentinels;
  if (vocabulary.sentence_piece && vocabulary.source) describe_pieces(vocabulary, fields);
  if (!fields.empty()) write_file(config, fields.dump(2) + "\n");
}

}  // namespace megatron::text
