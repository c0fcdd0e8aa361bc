#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace megatron::text {

/// A token that the merges never make: it stands for something outside the text.
struct SpecialToken {
  std::string content;
  std::int32_t id = 0;
  bool special = true;  ///< Hugging Face's mark; both kinds are recognised in the text.
};

/// Tokens and merges as data, as files hold them.
///
/// Rules (Tokenizer's constructor checks them): all 256 single bytes are tokens; no two tokens have the same bytes;
/// each merge joins two tokens into a token that is their concatenation, and no pair is merged twice; special tokens
/// are tokens of the vocabulary.
struct Vocabulary {
  std::vector<std::string> tokens;                            ///< Bytes of each id, special tokens included.
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  ///< Ids of left and right half, most important first.
  std::vector<SpecialToken> specials;
  bool ignore_merges = false;  ///< A piece that is a token becomes it even where the merges would not make it.
};

}  // namespace megatron::text
