#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/characters/byte_trie.h"
#include "megatron/text/characters/token_index.h"
#include "megatron/text/vocabulary.h"

namespace megatron::text {

/// Finds the special tokens that are written out in a text, as Hugging Face tokenizers does: of those that begin
/// leftmost the longest; first the raw ones in the text as it is, then the normalized ones in what is normalized of the
/// rest.
class AddedTokens {
 public:
  enum class Phase : std::uint8_t { Raw, Normalized };

  AddedTokens() = default;
  static constexpr std::size_t kMaxTokenBytes = 4096;  ///< So that a text costs at most so many steps a byte.

  /// `normalize` is what is done to text before normalized tokens are looked for in it. Throws ConfigError for a
  /// special token that is no token of the vocabulary, and for a longer one.
  AddedTokens(const Vocabulary& vocabulary, const TokenIndex& token_ids,
              const std::function<std::string(std::string_view)>& normalize);

  bool any(Phase phase) const { return !tables_[static_cast<std::size_t>(phase)].entries.empty(); }

  /// Calls `text(std::string_view)` and `token(id, std::string_view)` for what `whole` is made of, in order; the views
  /// are parts of it.
  template <class OnText, class OnToken>
  void split(Phase phase, std::string_view whole, const OnText& text, const OnToken& token) const {
    std::size_t search = 0, done = 0;
    for (Match match; find(phase, whole, search, done, match); done = match.end) {
      if (done < match.begin) text(whole.substr(done, match.begin - done));
      token(match.id, whole.substr(match.begin, match.end - match.begin));
    }
    if (done < whole.size()) text(whole.substr(done));
  }

 private:
  struct Match {
    std::size_t begin = 0, end = 0;  ///< with the white space that the token takes
    std::int32_t id = 0;
  };
  struct Entry {
    std::string content;
    SpecialToken token;
  };
  struct Table {
    std::vector<Entry> entries;
    ByteTrie contents;  ///< index of the entry
  };

  void index(Table& table);
  /// The next token at or after `search`, which moves past it; `done`: how far the text is taken already.
  bool find(Phase phase, std::string_view text, std::size_t& search, std::size_t done, Match& match) const;

  std::array<Table, 2> tables_;
};

}  // namespace megatron::text
