#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/tokenizer.h"

namespace megatron::serve {

/// A byte that no text in UTF-8 has. Before the spelling of a special token it tells the token from its spelling.
inline constexpr char kSpecialTokenMark = '\xFF';

/// What the tokens of a tokenizer add to a text, as a tree of bytes, so that those that fit somewhere are found
/// together. Special tokens, which are no text, are there behind kSpecialTokenMark. Immutable.
class TokenTrie {
 public:
  /// `vocab`: ids of the model, which may be more than the tokenizer's.
  TokenTrie(const text::Tokenizer& tokenizer, std::int64_t vocab);
  /// Tokens by id that are these bytes, special ones marked; an empty one is in no text.
  explicit TokenTrie(const std::vector<std::string>& tokens);

  /// A node's children and tokens are ranges of the two lists below.
  struct Node {
    std::uint32_t first_child = 0, children = 0, first_token = 0, tokens = 0;
    std::uint8_t byte = 0;
  };
  const std::vector<Node>& nodes() const { return nodes_; }  ///< the first is the root; children of one lie together
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  /// How a model that has this text as a special token writes it; else the text.
  std::string spelled(std::string_view text) const;
  const std::string& bytes(std::int64_t token) const { return bytes_[static_cast<std::size_t>(token)]; }
  std::int64_t vocab() const { return static_cast<std::int64_t>(bytes_.size()); }

 private:
  void build();

  std::vector<std::string> bytes_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace megatron::serve
