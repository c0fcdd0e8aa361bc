#pragma once
#include <string>
#include <vector>

#include "megatron/text/tokenizer.h"
#include "megatron/text/vocabulary.h"

namespace megatron::data {

/// A tokenizer with a token for each byte, whose id is the byte, and then the special tokens given.
inline text::Tokenizer byte_tokenizer(const std::vector<std::string>& specials) {
  text::Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  for (const std::string& special : specials) {
    const auto id = static_cast<std::int32_t>(vocabulary.tokens.size());
    vocabulary.tokens.push_back(special);
    text::SpecialToken token;
    token.content = special;
    token.id = id;
    vocabulary.specials.push_back(token);
  }
  return text::Tokenizer(vocabulary);
}

}  // namespace megatron::data
