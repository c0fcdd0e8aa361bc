#include "megatron/text/files/token_spellings.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"

namespace megatron::text {

using nlohmann::json;

json parse_json(std::string_view text, const std::string& name) {
  try {
    return megatron::parse_json(text);
  } catch (const JsonError& error) {
    throw ConfigError(rule_got_fix(name + ": must be JSON", error.detail.empty()
                                                                ? error.what()
                                                                : concat("at byte ", error.byte, ": ", error.detail)));
  }
}

std::string shortened(const json& value) {
  if (value.is_structured()) return value.type_name();
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return printable(text.size() <= 60 ? text : text.substr(0, 60) + "…");
}

std::vector<SpelledToken> spelled_tokens(const json& vocab, const std::string& name) {
  if (!vocab.is_object())
    throw ConfigError(rule_got_fix(name + ": the vocabulary must be an object of tokens and ids", shortened(vocab)));
  std::vector<SpelledToken> tokens;
  tokens.reserve(vocab.size());
  for (const auto& [spelling, value] : vocab.get_ref<const json::object_t&>()) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
      throw ConfigError(rule_got_fix(concat(name, ": ids must be whole numbers from 0 on"),
                                     concat("id ", shortened(value), " for ", in_quotes(spelling))));
    tokens.push_back({spelling, static_cast<std::int32_t>(value.get<std::uint64_t>())});
  }
  return tokens;
}

void SpellingReader::set_token(std::int32_t id, std::string bytes) {
  if (vocabulary_.tokens.size() <= static_cast<std::size_t>(id))
    vocabulary_.tokens.resize(static_cast<std::size_t>(id) + 1);
  std::string& token = vocabulary_.tokens[static_cast<std::size_t>(id)];
  if (!token.empty())
    throw ConfigError(rule_got_fix(name_ + ": no two tokens may have the same id",
                                   concat("id ", id, " for ", in_quotes(token), " and ", in_quotes(bytes))));
  if (bytes.empty())
    throw ConfigError(rule_got_fix(name_ + ": a token must have at least one byte", concat("id ", id, " is empty")));
  token = std::move(bytes);
}

void SpellingReader::read_tokens(const json& vocab, std::vector<SpecialToken> specials) {
  read_tokens(spelled_tokens(vocab, name_), std::move(specials));
}

void SpellingReader::read_tokens(std::span<const SpelledToken> vocab, std::vector<SpecialToken> specials) {
  std::unordered_map<std::string_view, const SpecialToken*> outside;  // specials that `vocab` does not list
  for (const SpecialToken& special : specials)
    if (!outside.emplace(special.content, &special).second)
      throw ConfigError(rule_got_fix(name_ + ": no added token may come twice", in_quotes(special.content)));
  ids_.reserve(vocab.size());
  for (const SpelledToken& token : vocab) {
    if (!ids_.emplace(token.spelling, token.id).second)
      throw ConfigError(rule_got_fix(name_ + ": must be JSON",
                                     concat("the key ", in_quotes(token.spelling), " twice in one object")));
  }
  std::unordered_map<std::int32_t, const SpecialToken*> inside;  // those that `vocab` lists, by the id that it gives
  for (const SpecialToken& special : specials)
    if (const std::int32_t id = ids_.find(special.content); id >= 0) {
      inside.emplace(id, &special);
      outside.erase(special.content);
    }
  const std::size_t limit = 2 * (vocab.size() + outside.size()) + 1024;

  std::string bytes;
  vocabulary_.tokens.resize(vocab.size());
  for (const auto& [spelling, id] : vocab) {
    if (static_cast<std::size_t>(id) >= limit)
      throw ConfigError(rule_got_fix(concat(name_, ": ids must be 0 … ", limit - 1),
                                     concat("id ", id, " for ", in_quotes(spelling))));
    const auto special = inside.find(id);
    if (special != inside.end() && special->second->content == spelling) {
      if (special->second->id != id)
        throw ConfigError(rule_got_fix(name_ + ": an added token must have the id that the vocabulary gives it",
                                       concat(in_quotes(spelling), " has ", special->second->id, " and ", id)));
      bytes = spelling;
    } else if (spelling_ == Spelling::Plain) {
      bytes = spelling;
    } else if (!from_byte_level(spelling, bytes)) {
      throw ConfigError(
          rule_got_fix(name_ + ": tokens must be spelled in GPT-2's byte characters", in_quotes(spelling)));
    }
    set_token(id, bytes);
  }
  for (const auto& [content, special] : outside) {
    if (special->id < 0 || static_cast<std::size_t>(special->id) >= limit)
      throw ConfigError(rule_got_fix(concat(name_, ": ids must be 0 … ", limit - 1),
                                     concat("id ", special->id, " for ", in_quotes(content))));
    set_token(special->id, special->content);
  }
  for (SpecialToken& special : specials) special.outside = outside.contains(special.content);
  vocabulary_.specials = std::move(specials);
}

std::int32_t SpellingReader::id_of(std::string_view spelling) const { return ids_.find(spelling); }

void SpellingReader::add_merge(std::string_view left, std::string_view right, const std::function<std::string()>& where,
                               std::string_view prefix) {
  const std::pair<std::int32_t, std::int32_t> merge{id_of(left), id_of(right)};
  if (merge.first < 0 || merge.second < 0)
    throw ConfigError(rule_got_fix(concat(name_, ": a merge must join two tokens of the vocabulary"),
                                   concat(where(), ": unknown token ", in_quotes(merge.first < 0 ? left : right))));
  joined_.assign(left).append(right.substr(right.starts_with(prefix) ? prefix.size() : 0));
  const std::int32_t made = id_of(joined_);
  if (made < 0)
    throw ConfigError(rule_got_fix(concat(name_, ": a merge must make a token of the vocabulary"),
                                   concat(where(), ": no token ", in_quotes(joined_))));
  vocabulary_.merges.push_back(merge);
  vocabulary_.made.push_back(made);
}

}  // namespace megatron::text
