#include "megatron/text/files/hugging_face/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <variant>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/files/hugging_face/json_component.h"
#include "megatron/text/files/hugging_face/pipeline_forms.h"
#include "megatron/text/files/object_file.h"
#include "megatron/text/files/tokenizer_files.h"

namespace megatron::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};

using File = ObjectFile;

/// `value` of a file: the token's content, or an object with it and how it is found.
SpecialToken read_token(const Component& file, const char* key, const json& value) {
  if (value.is_string()) return {.content = value.get<std::string>(), .id = -1};
  if (!value.is_object()) file.refuse(concat(".", key, " must be a token"), shortened(value));
  const Component token(value, concat(file.path(), key));
  return {.content = token.text("content"),
          .id = -1,
          .special = token.boolean("special", true),
          .single_word = token.boolean("single_word", false),
          .lstrip = token.boolean("lstrip", false),
          .rstrip = token.boolean("rstrip", false),
          .normalized = token.boolean("normalized", false)};
}

/// Added tokens by the order in which they are read; of the same content there is one.
class AddedList {
 public:
  /// What becomes of a token that is named and in no list: an error, or the next id.
  enum class Unlisted : std::uint8_t { Refused, Appended };

  explicit AddedList(const VocabularyDocument& vocab, Unlisted unlisted = Unlisted::Refused)
      : vocab_(vocab), unlisted_(unlisted) {}

  void add_with_id(const Component& file, SpecialToken token, std::int32_t id) {
    if (token.content.empty()) file.refuse("must not add an empty token", concat("id ", id));
    token.id = id;
    if (!places_.emplace(token.content, tokens_.size()).second)
      file.refuse("must not add a token twice", in_quotes(token.content));
    tokens_.push_back(std::move(token));
  }

  /// A token that `key` of `file` names: special from now on. `may_append`: such as Unlisted says.
  void name(const Component& file, const char* key, SpecialToken token, bool may_append = false) {
    token.special = true;
    if (const auto place = places_.find(token.content); place != places_.end()) {
      tokens_[place->second].special = true;
      return;
    }
    const std::int32_t found = vocab_.ids.find(token.content);
    if (found < 0 && (unlisted_ == Unlisted::Refused || !may_append))
      file.refuse(concat(".", key, " must be a token of the vocabulary, or of added_tokens.json"),
                  in_quotes(token.content));
    add_with_id(file, token, found >= 0 ? found : next_id());
  }

  bool has(const std::string& token) const { return places_.contains(token); }

  /// All, by id. Throws unless those that the vocabulary lacks follow it.
  std::vector<SpecialToken> take(const std::string& folder) {
    std::ranges::sort(tokens_, {}, &SpecialToken::id);
    auto next = static_cast<std::int64_t>(vocab_.tokens.size());
    for (const SpecialToken& token : tokens_) {
      if (vocab_.ids.find(token.content) >= 0) continue;  // who makes the vocabulary compares the ids
      if (token.id != next)
        throw ConfigError(
            rule_got_fix(concat(folder, ": an added token must have the next id behind the vocabulary, ", next),
                         concat("id ", token.id, " of ", in_quotes(token.content)),
                         "give the ids in order, or save the tokenizer as tokenizer.json, which may have any"));
      ++next;
    }
    return std::move(tokens_);
  }

 private:
  std::int32_t next_id() const {
    auto last = static_cast<std::int32_t>(vocab_.tokens.size()) - 1;
    for (const SpecialToken& token : tokens_) last = std::max(last, token.id);
    return last < std::numeric_limits<std::int32_t>::max() ? last + 1 : last;  // which take() refuses
  }

  const VocabularyDocument& vocab_;
  Unlisted unlisted_;
  std::vector<SpecialToken> tokens_;
  std::unordered_map<std::string, std::size_t> places_;
};

void read_decoder(const Component& config, AddedList& list) {
  const Component entries = config.at("added_tokens_decoder");
  for (const auto& [key, value] : config.get("added_tokens_decoder").items()) {
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0)
      config.refuse(".added_tokens_decoder must have ids as keys", in_quotes(key));
    SpecialToken token = read_token(entries, key.c_str(), value);
    token.special = value.is_object() && Component(value, config.path()).boolean("special", false);
    list.add_with_id(config, std::move(token), id);
  }
}

/// Those of added_tokens_decoder, or without it of added_tokens.json.
void read_added(const fs::path& folder, const File& config, AddedList& list) {
  if (config.root.has("added_tokens_decoder")) return read_decoder(config.root, list);
  const File added(folder, "added_tokens.json");
  for (const auto& [content, id] : added.content.items())
    list.add_with_id(added.root, {.content = content, .special = false, .normalized = true},
                     added.root.number(content.c_str()));
}

void read_names(const File& file, const File* before, AddedList& list) {
  for (const char* key : kNames)
    if (file.root.has(key) && (before == nullptr || !before->root.has(key)))
      list.name(file.root, key, read_token(file.root, key, file.root.get(key)), before == nullptr);
  constexpr const char* kMore = "additional_special_tokens";
  for (std::size_t i = 0; i < file.root.array_size(kMore); ++i)
    list.name(file.root, kMore, read_token(file.root, kMore, file.root.get(kMore)[i]), before == nullptr);
}

/// How texts of a class are cut and framed, where this is known for vocab.json and merges.txt.
enum class Kind : std::uint8_t { Gpt2, Roberta };

bool one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::ranges::find(names, name) != names.end();
}

/// transformers' class for the folder, without "Fast"; empty where nothing says it.
std::string class_of(const fs::path& folder, const File& config) {
  std::string type = config.text("tokenizer_class");
  if (type.ends_with("Fast")) type.resize(type.size() - 4);
  if (!type.empty()) return type;
  constexpr const char* kOfModels[][2] = {{"gpt2", "GPT2Tokenizer"},      {"roberta", "RobertaTokenizer"},
                                          {"bart", "BartTokenizer"},      {"longformer", "LongformerTokenizer"},
                                          {"bert", "BertTokenizer"},      {"distilbert", "DistilBertTokenizer"},
                                          {"electra", "ElectraTokenizer"}};
  const std::string model = File(folder, "config.json").text("model_type");
  for (const auto& [name, its_class] : kOfModels)
    if (model == name) return its_class;
  return "";
}

Kind kind_of(const fs::path& folder, const File& config) {
  const std::string type = class_of(folder, config);
  if (one_of(type, {"", "GPT2Tokenizer"})) return Kind::Gpt2;
  if (one_of(type, {"RobertaTokenizer", "BartTokenizer", "LongformerTokenizer"})) return Kind::Roberta;
  throw ConfigError(rule_got_fix(
      concat(config.path, ": with vocab.json and merges.txt, tokenizer_class must be GPT2Tokenizer, RobertaTokenizer, ",
             "BartTokenizer or LongformerTokenizer"),
      in_quotes(type), "save the tokenizer as tokenizer.json, which says how it cuts texts"));
}

std::optional<std::int32_t> find_token(const Vocabulary& vocabulary, const std::string& token) {
  const auto found = std::ranges::find(vocabulary.tokens, token);
  if (token.empty() || found == vocabulary.tokens.end()) return std::nullopt;  // what is empty is a hole
  return static_cast<std::int32_t>(found - vocabulary.tokens.begin());
}

/// The token that the config names as `key`, else `usual`; which must be in the vocabulary.
std::int32_t named_token(const File& config, const char* key, const char* usual, const Vocabulary& vocabulary) {
  const std::string token =
      config.root.has(key) ? read_token(config.root, key, config.root.get(key)).content : std::string(usual);
  const auto id = find_token(vocabulary, token);
  if (!id) config.root.refuse(concat(".", key, " must be a token of the vocabulary"), in_quotes(token));
  return *id;
}

/// Refuses `key` where it says another thing than the tokenizer does.
void must_agree(const File& config, const char* key, bool is) {
  if (!config.root.has(key) || config.root.boolean(key, is) == is) return;
  throw ConfigError(rule_got_fix(
      concat(config.path, ": ", key, " must be what tokenizer.json says, ", is, ", which transformers would change"),
      concat(!is),
      concat("set ", key, " to ", is, " to keep tokenizer.json as it is, or let transformers load and save ",
             "the tokenizer")));
}

}  // namespace

std::vector<SpecialToken> added_tokens_beside(const fs::path& folder, const VocabularyDocument& vocab) {
  const File config(folder, "tokenizer_config.json"), map(folder, "special_tokens_map.json");
  AddedList list(vocab);
  read_added(folder, config, list);
  read_names(config, nullptr, list);
  read_names(map, &config, list);
  const bool roberta = kind_of(folder, config) == Kind::Roberta;
  const auto use = [&](const char* token) {
    if (vocab.ids.find(token) >= 0 && !list.has(token)) list.name(config.root, "tokenizer_class", {.content = token});
  };
  if (roberta)
    for (const char* token : {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}) use(token);
  else
    use("<|endoftext|>");
  return list.take(folder.string());
}

void follow_config(const fs::path& folder, Vocabulary& vocabulary) {
  const File config(folder, "tokenizer_config.json");
  const bool add_prefix_space = config.root.boolean("add_prefix_space", false);
  if (add_prefix_space) {
    vocabulary.pipeline.emplace();
    vocabulary.pipeline->pre_tokenizers = {pretokenizer::ByteLevel{.add_prefix_space = true}};
    vocabulary.pipeline->decoders = {decoder::ByteLevel()};
  }
  if (kind_of(folder, config) == Kind::Roberta) {
    vocabulary.frame = roberta_template(named_token(config, "cls_token", "<s>", vocabulary),
                                        named_token(config, "sep_token", "</s>", vocabulary));
    vocabulary.end_of_text = find_token(vocabulary, "</s>");
    if (config.root.boolean("trim_offsets", true)) vocabulary.trim_offsets = TrimOffsets{add_prefix_space};
    return;
  }
  const bool begins = config.root.boolean("add_bos_token", false), ends = config.root.boolean("add_eos_token", false);
  if (ends) config.root.refuse(".add_eos_token must be false", "true");
  if (!begins) return;
  using Item = Template::Kind;
  const std::int32_t bos = named_token(config, "bos_token", "<|endoftext|>", vocabulary);
  vocabulary.frame.single = {{Item::Token, bos, 0}, {Item::First, 0, 0}};
  vocabulary.frame.pair = {{Item::Token, bos, 0}, {Item::First, 0, 0}, {Item::Token, bos, 1}, {Item::Second, 0, 1}};
}

namespace {

/// Makes `token` one of the pieces, or marks the piece that it is.
void add_piece(SpecialToken token, const std::string& folder, Vocabulary& vocabulary) {
  using Type = SentencePiece::Type;
  token.normalized = false;  // the model's normalizer would mark it as a word
  const auto id = static_cast<std::size_t>(token.id);
  if (id < vocabulary.tokens.size()) {
    if (vocabulary.tokens[id] != token.content)
      throw ConfigError(
          rule_got_fix(concat(folder, ": an added token must have the id that the SentencePiece model gives it"),
                       concat("id ", id, " for ", in_quotes(token.content)), "save the tokenizer as tokenizer.json"));
    std::erase_if(vocabulary.specials, [&](const SpecialToken& other) { return other.id == token.id; });
  } else {
    if (!token.special)
      std::get<normalizer::SentencePiece>(vocabulary.pipeline->normalizers.at(0)).user_symbols.push_back(token.content);
    vocabulary.tokens.push_back(token.content);
    vocabulary.sentence_piece->types.push_back(token.special ? Type::Control : Type::UserDefined);
    vocabulary.sentence_piece->scores.push_back(-1000);  // as llama.cpp's converter has it: no merge makes it
  }
  vocabulary.specials.push_back(std::move(token));
}

}  // namespace

void add_pieces_beside(const fs::path& folder, Vocabulary& vocabulary) {
  if (!vocabulary.sentence_piece) return;
  const File config(folder, "tokenizer_config.json"), map(folder, "special_tokens_map.json");
  VocabularyDocument pieces;
  for (const std::string& piece : vocabulary.tokens) {
    const auto id = static_cast<std::int32_t>(pieces.tokens.size());
    pieces.tokens.push_back({piece, id});
    pieces.ids.emplace(piece, id);
  }
  AddedList list(pieces, AddedList::Unlisted::Appended);
  read_added(folder, config, list);
  read_names(config, nullptr, list);
  read_names(map, &config, list);
  for (SpecialToken& token : list.take(folder.string())) add_piece(std::move(token), folder.string(), vocabulary);

  if (one_of(class_of(folder, config), {"LlamaTokenizer", "CodeLlamaTokenizer"}) &&
      !config.root.boolean("legacy", true)) {
    auto& text = std::get<normalizer::SentencePiece>(vocabulary.pipeline->normalizers.at(0));
    if (std::exchange(text.add_dummy_prefix, false))
      vocabulary.pipeline->pre_tokenizers = {pretokenizer::Metaspace{.prepend = PrependScheme::First, .split = false}};
  }
  const bool begins = config.root.boolean("add_bos_token", false), ends = config.root.boolean("add_eos_token", false);
  if (!begins && !ends) return;
  using Item = Template::Kind;
  const std::int32_t bos = begins ? named_token(config, "bos_token", "<s>", vocabulary) : 0;
  const std::int32_t eos = ends ? named_token(config, "eos_token", "</s>", vocabulary) : 0;
  const auto put = [&](Item text, std::int32_t type, std::vector<Template::Item>& items) {
    if (begins) items.push_back({Item::Token, bos, type});
    items.push_back({text, 0, type});
    if (ends) items.push_back({Item::Token, eos, type});
  };
  put(Item::First, 0, vocabulary.frame.single);
  put(Item::First, 0, vocabulary.frame.pair);
  put(Item::Second, 1, vocabulary.frame.pair);
}

void check_config(const fs::path& folder, const Vocabulary& vocabulary) {
  const File config(folder, "tokenizer_config.json");
  const std::string type = class_of(folder, config);
  const Pipeline pipeline = pipeline_of(vocabulary);
  if (pipeline.pre_tokenizers.size() == 1)
    if (const auto* bytes = std::get_if<pretokenizer::ByteLevel>(&pipeline.pre_tokenizers[0]))
      if (one_of(type, {"GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "LongformerTokenizer"}))
        must_agree(config, "add_prefix_space", bytes->add_prefix_space);
  if (!one_of(type, {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"}) || pipeline.normalizers.size() != 1)
    return;
  if (const auto* bert = std::get_if<BertNormalization>(&pipeline.normalizers[0])) {
    must_agree(config, "do_lower_case", bert->lower_case);
    must_agree(config, "strip_accents", bert->strip_accents);
    must_agree(config, "tokenize_chinese_chars", bert->space_chinese);
  }
}

void check_added_tokens(const fs::path& folder, const Vocabulary& vocabulary) {
  const File config(folder, "tokenizer_config.json"), added(folder, "added_tokens.json");
  const auto check = [&](const File& file, const std::string& token) {
    if (!find_token(vocabulary, token))
      throw ConfigError(rule_got_fix(concat(file.path, ": with vocab.txt an added token must be one of its lines"),
                                     in_quotes(token), "save the tokenizer as tokenizer.json, which says all of it"));
  };
  for (const auto& [content, id] : added.content.items()) check(added, content);
  if (!config.root.has("added_tokens_decoder")) return;
  const Component entries = config.root.at("added_tokens_decoder");
  for (const auto& [id, value] : config.root.get("added_tokens_decoder").items())
    check(config, read_token(entries, id.c_str(), value).content);
}

std::optional<std::int32_t> end_token_beside(const fs::path& folder, const Vocabulary& vocabulary) {
  const File config(folder, "tokenizer_config.json"), map(folder, "special_tokens_map.json");
  for (const char* key : {"eos_token", "sep_token"})
    for (const File* file : {&config, &map})
      if (file->root.has(key)) return named_token(*file, key, "", vocabulary);
  return std::nullopt;
}

}  // namespace megatron::text
