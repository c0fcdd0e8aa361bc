#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::text {

/// SentencePiece's compiled replacements of strings by strings: a double-array trie (Aoe 1989) of what is replaced, and
/// the replacements, each ended by a zero.
class Charsmap {
 public:
  Charsmap() = default;
  /// Throws ConfigError, beginning with `where`, where `blob` is not one. An empty one replaces nothing.
  Charsmap(std::string_view blob, const std::string& where);

  /// Bytes of the longest key that is looked for; those of published maps have a tenth of it. In a damaged trie a key
  /// may have no end, and each byte of a text may begin one.
  static constexpr std::size_t kMaxKey = 256;

  bool empty() const { return trie_.empty(); }

  struct Match {
    std::size_t size = 0;  ///< bytes that are replaced; 0: none
    std::string_view replacement;
  };
  /// The longest key that `text` begins with (as SentencePiece takes it), or the shortest (as Hugging Face does).
  Match longest(std::string_view text) const { return find(text, false); }
  Match shortest(std::string_view text) const { return find(text, true); }

 private:
  Match find(std::string_view text, bool first) const;

  std::vector<std::uint32_t> trie_;
  std::string replacements_;
};

}  // namespace megatron::text
