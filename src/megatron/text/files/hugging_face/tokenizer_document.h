#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/text/files/token_spellings.h"

namespace simdjson::dom {
class parser;
}

namespace megatron::text {

/// A tokenizer.json, of which the two long lists are no JSON values: these would take three quarters of the time that
/// such a file takes to be read.
struct TokenizerDocument {
  nlohmann::json root;  ///< model.vocab is {} and model.merges [] where they are among the lists below

  bool has_tokens = false, has_merges = false;
  std::vector<SpelledToken> tokens;                                   ///< model.vocab
  std::vector<std::pair<std::string_view, std::string_view>> merges;  ///< model.merges, left and right

  std::shared_ptr<simdjson::dom::parser> text;  ///< what the views point into
};

/// A vocab.json: an object of spellings and ids.
struct VocabularyDocument {
  std::vector<SpelledToken> tokens;
  TokenIndex ids;

  std::shared_ptr<const void> text;  ///< what the views point into
};

/// Reads `text`, the file `name`. Throws ConfigError as parse_json() does, and where it is something else.
VocabularyDocument read_vocabulary_document(std::string_view text, const std::string& name);

/// Reads `text`, the file `name`. The lists are taken where they are as a tokenizer's should be: ids that are whole
/// numbers, merges of two spellings. Throws ConfigError as parse_json() does.
TokenizerDocument read_tokenizer_document(std::string_view text, const std::string& name);

}  // namespace megatron::text
