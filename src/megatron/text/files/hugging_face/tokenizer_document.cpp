#include "megatron/text/files/hugging_face/tokenizer_document.h"

#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "megatron/base/text/json.h"

namespace megatron::text {
namespace {

using nlohmann::json;
using simdjson::dom::element;
using simdjson::dom::element_type;

/// Spellings and ids, where there is nothing else.
std::optional<std::vector<SpelledToken>> spelled_tokens(simdjson::dom::object object) {
  std::vector<SpelledToken> tokens;
  tokens.reserve(object.size());
  for (const auto& [spelling, id] : object) {
    std::int64_t number = 0;
    if (id.type() != element_type::INT64 || id.get(number) != simdjson::SUCCESS || number < 0 ||
        number > std::numeric_limits<std::int32_t>::max())
      return std::nullopt;
    tokens.push_back({spelling, static_cast<std::int32_t>(number)});
  }
  return tokens;
}

/// False where two are spelled alike.
bool index(VocabularyDocument& document) {
  document.ids.reserve(document.tokens.size());
  return std::ranges::all_of(
      document.tokens, [&](const SpelledToken& each) { return document.ids.emplace(each.spelling, each.id).second; });
}

/// A document as simdjson has read it, turned into what parse_json() would give. Where that would refuse something, so
/// does this, without a word: whoever asks then has parse_json() say it.
class Reader {
 public:
  explicit Reader(TokenizerDocument& document) : document_(document) {}

  bool read(element root) {
    auto value = value_of(root, Section::Root, 0);
    if (value) document_.root = std::move(*value);
    return value.has_value();
  }

 private:
  enum class Section { Root, Model, Tokens, Merges, Elsewhere };

  std::optional<json> value_of(element value, Section place, std::size_t depth) {
    switch (value.type()) {
      case element_type::OBJECT:
        return depth < kMaxJsonDepth ? object_of(value, place, depth) : std::nullopt;
      case element_type::ARRAY:
        return depth < kMaxJsonDepth ? array_of(value, place, depth) : std::nullopt;
      case element_type::STRING:
        return json(std::string(std::string_view(value)));
      case element_type::INT64:
        return number(std::int64_t(value));
      case element_type::UINT64:
        return json(std::uint64_t(value));
      case element_type::DOUBLE:
        return json(double(value));
      case element_type::BOOL:
        return json(bool(value));
      default:
        return json();
    }
  }

  /// As the other parser has whole numbers: unsigned where they are not negative.
  static json number(std::int64_t value) { return value < 0 ? json(value) : json(static_cast<std::uint64_t>(value)); }

  std::optional<json> object_of(simdjson::dom::object object, Section place, std::size_t depth) {
    if (place == Section::Tokens && tokens_of(object)) return json::object();
    json::object_t members;
    for (const auto& [key, value] : object) {
      const Section inside = place == Section::Root && key == "model"     ? Section::Model
                             : place == Section::Model && key == "vocab"  ? Section::Tokens
                             : place == Section::Model && key == "merges" ? Section::Merges
                                                                          : Section::Elsewhere;
      auto member = value_of(value, inside, depth + 1);
      if (!member || !members.emplace(std::string(key), std::move(*member)).second) return std::nullopt;
    }
    return json(std::move(members));
  }

  std::optional<json> array_of(simdjson::dom::array array, Section place, std::size_t depth) {
    if (place == Section::Merges && merges_of(array)) return json::array();
    json::array_t elements;
    for (const element each : array) {
      auto value = value_of(each, Section::Elsewhere, depth + 1);
      if (!value) return std::nullopt;
      elements.push_back(std::move(*value));
    }
    return json(std::move(elements));
  }

  bool tokens_of(simdjson::dom::object object) {
    auto tokens = spelled_tokens(object);
    document_.has_tokens = tokens.has_value();
    if (tokens) document_.tokens = std::move(*tokens);
    return document_.has_tokens;
  }

  bool merges_of(simdjson::dom::array array) {
    std::vector<std::pair<std::string_view, std::string_view>> merges;
    merges.reserve(array.size());
    for (const element each : array) {
      std::string_view left, right;
      if (each.get(left) == simdjson::SUCCESS) {
        const std::size_t space = left.find(' ');
        if (space == left.npos || left.find(' ', space + 1) != left.npos) return false;
        right = left.substr(space + 1);
        left = left.substr(0, space);
      } else {
        simdjson::dom::array pair;
        if (each.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(left) != simdjson::SUCCESS ||
            pair.at(1).get(right) != simdjson::SUCCESS)
          return false;
      }
      merges.emplace_back(left, right);
    }
    document_.merges = std::move(merges);
    return document_.has_merges = true;
  }

  TokenizerDocument& document_;
};

}  // namespace

VocabularyDocument read_vocabulary_document(std::string_view text, const std::string& name) {
  auto parser = std::make_shared<simdjson::dom::parser>();
  simdjson::dom::object object;
  if (parser->parse(text.data(), text.size()).get(object) == simdjson::SUCCESS)
    if (auto tokens = spelled_tokens(object)) {
      VocabularyDocument document{std::move(*tokens), {}, std::move(parser)};
      if (index(document)) return document;
    }
  const auto value = std::make_shared<const json>(parse_json(text, name));
  VocabularyDocument document{spelled_tokens(*value, name), {}, value};
  index(document);
  return document;
}

TokenizerDocument read_tokenizer_document(std::string_view text, const std::string& name) {
  TokenizerDocument document;
  document.text = std::make_shared<simdjson::dom::parser>();
  element root;
  if (document.text->parse(text.data(), text.size()).get(root) == simdjson::SUCCESS && Reader(document).read(root))
    return document;
  TokenizerDocument plain;
  plain.root = parse_json(text, name);
  return plain;
}

}  // namespace megatron::text
