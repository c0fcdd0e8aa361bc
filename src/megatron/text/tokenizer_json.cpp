#include <algorithm>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/text/byte_level.h"
#include "megatron/text/token_spellings.h"
#include "megatron/text/tokenizer_files.h"

namespace megatron::text {
namespace {

using nlohmann::json;

/// One object of the file; knows its path in it, for messages.
class Component {
 public:
  Component(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) refuse("must be an object", shortened(object_));
  }

  /// Refuses members that are not in `known`: what is not understood could change the tokens.
  void know(std::initializer_list<const char*> known) const {
    for (const auto& [key, value] : object_.items())
      if (std::none_of(known.begin(), known.end(), [&key = key](const char* name) { return key == name; }))
        refuse("has a member that byte-level BPE does not have", printable(key));
  }

  /// The member, or null where it is missing.
  const json& get(const char* key) const {
    static const json kNull;
    const auto found = object_.find(key);
    return found == object_.end() ? kNull : *found;
  }

  std::string text(const char* key) const {
    if (!get(key).is_string()) refuse(concat(".", key, " must be a string"), shortened(get(key)));
    return get(key).get<std::string>();
  }

  bool boolean(const char* key, bool missing) const {
    const json& value = get(key);
    if (value.is_null()) return missing;
    if (!value.is_boolean()) refuse(concat(".", key, " must be true or false"), shortened(value));
    return value.get<bool>();
  }

  /// Demands that a member is null, missing or equal to `neutral`.
  void must_be_neutral(const char* key, const json& neutral) const {
    const json& value = get(key);
    if (!value.is_null() && value != neutral)
      refuse(concat(".", key, " must be ", neutral.is_null() ? "null" : neutral.dump(), " (others are not supported)"),
             value.is_object() && value.contains("type") ? shortened(value["type"]) : shortened(value));
  }

  [[noreturn]] void refuse(const std::string& rule, const std::string& got) const {
    // "file: normalizer must …", "file: model.type must …", "file: model has …"
    const bool is_root = where_.ends_with(": ");
    const std::string_view name = is_root && rule.starts_with('.') ? std::string_view(rule).substr(1) : rule;
    throw ConfigError(rule_got_fix(concat(where_, is_root || rule.starts_with('.') ? "" : " ", name), got));
  }

 private:
  const json& object_;
  std::string where_;
};

/// A component of type ByteLevel. Only a pre-tokenizer's members change tokens; trim_offsets never does.
void require_byte_level(const json& value, const std::string& where, bool is_pre_tokenizer) {
  const Component component(value, where);
  if (component.get("type") != "ByteLevel")
    component.refuse(".type must be \"ByteLevel\"", shortened(component.get("type")));
  component.know({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  component.boolean("trim_offsets", true);
  if (component.boolean("add_prefix_space", true) && is_pre_tokenizer)
    component.refuse(".add_prefix_space must be false (true is not supported)", "true");
  if (!component.boolean("use_regex", true) && is_pre_tokenizer)
    component.refuse(".use_regex must be true (false is not supported)", "false");
}

SpecialToken read_added_token(const json& value, const std::string& where) {
  const Component token(value, where);
  token.know({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  for (const char* key : {"single_word", "lstrip", "rstrip"}) token.must_be_neutral(key, false);
  token.boolean("normalized", false);  // there is no normalizer
  SpecialToken special;
  special.content = token.text("content");
  special.special = token.boolean("special", false);
  const json& id = token.get("id");
  if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
    token.refuse(".id must be 0 or more", shortened(id));
  special.id = static_cast<std::int32_t>(id.get<std::uint64_t>());
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

}  // namespace

Vocabulary parse_tokenizer_json(std::string_view text, const std::string& name) {
  const json file = parse_json(text, name);
  const Component root(file, name + ": ");
  root.know({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
             "decoder", "model"});
  root.must_be_neutral("version", "1.0");
  for (const char* key : {"truncation", "padding", "normalizer"}) root.must_be_neutral(key, nullptr);
  require_byte_level(root.get("pre_tokenizer"), name + ": pre_tokenizer", true);
  require_byte_level(root.get("decoder"), name + ": decoder", false);
  if (!root.get("post_processor").is_null())
    require_byte_level(root.get("post_processor"), name + ": post_processor", false);

  const Component model(root.get("model"), name + ": model");
  if (!model.get("type").is_null() && model.get("type") != "BPE")
    model.refuse(".type must be \"BPE\"", shortened(model.get("type")));
  model.know({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  model.must_be_neutral("dropout", 0.0);
  model.must_be_neutral("continuing_subword_prefix", "");
  model.must_be_neutral("end_of_word_suffix", "");
  model.must_be_neutral("byte_fallback", false);
  model.boolean("fuse_unk", false);  // as unk_token: never used where every byte is a token
  if (!model.get("unk_token").is_null()) model.text("unk_token");

  std::vector<SpecialToken> specials;
  const json& added = root.get("added_tokens");
  if (!added.is_null() && !added.is_array()) root.refuse("added_tokens must be an array", shortened(added));
  for (std::size_t i = 0; i < added.size(); ++i)
    specials.push_back(read_added_token(added[i], concat(name, ": added_tokens[", i, "]")));
  SpellingReader reader(name);
  reader.read_tokens(model.get("vocab"), std::move(specials));
  read_merges(model.get("merges"), reader, name);
  Vocabulary vocabulary = reader.take();
  vocabulary.ignore_merges = model.boolean("ignore_merges", false);
  return vocabulary;
}

std::string to_tokenizer_json(const Vocabulary& vocabulary) {
  const auto quote = [](const std::string& spelling) { return json(spelling).dump(); };
  std::vector<bool> is_special(vocabulary.tokens.size());
  for (const SpecialToken& special : vocabulary.specials) is_special[static_cast<std::size_t>(special.id)] = true;
  std::vector<std::string> spellings;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id)
    spellings.push_back(is_special[id] ? vocabulary.tokens[id] : to_byte_level(vocabulary.tokens[id]));

  std::string out = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [";
  const char* separator = "\n";
  for (const SpecialToken& special : vocabulary.specials) {
    out +=
        concat(separator, "    {\"id\": ", special.id, ", \"content\": ", quote(special.content),
               ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": ",
               special.special, "}");
    separator = ",\n";
  }
  const char* byte_level =
      "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}";
  out +=
      concat("\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": ", byte_level,
             ",\n  \"post_processor\": null,\n  \"decoder\": ", byte_level,
             ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
             "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
             "    \"byte_fallback\": false,\n    \"ignore_merges\": ",
             vocabulary.ignore_merges, ",\n    \"vocab\": {");
  separator = "\n";
  for (std::size_t id = 0; id < spellings.size(); ++id, separator = ",\n")
    out += separator + ("      " + quote(spellings[id])) + ": " + std::to_string(id);
  out += "\n    },\n    \"merges\": [";
  separator = "\n";
  for (const auto& [left, right] : vocabulary.merges) {
    out += separator + ("      " + quote(spellings[static_cast<std::size_t>(left)] + " " +
                                         spellings[static_cast<std::size_t>(right)]));
    separator = ",\n";
  }
  return out + "\n    ]\n  }\n}\n";
}

void write_tokenizer_json(const Vocabulary& vocabulary, const std::filesystem::path& folder) {
  make_folder(folder);
  write_file(folder / "tokenizer.json", to_tokenizer_json(vocabulary));
}

}  // namespace megatron::text
