#pragma once
#include <array>
#include <string_view>

#include "megatron/text/characters/byte_trie.h"
#include "megatron/text/models/piece_key.h"
#include "megatron/text/models/tokenizer_model.h"

namespace megatron::text {

/// WordPiece over BERT's words (Devlin et al. 2019): of each word the longest piece that is a token, again and again.
class WordPieceModel : public TokenizerModel {
 public:
  static constexpr std::size_t kMaxTokenBytes = 4096;  ///< So that a word costs at most so many steps a byte.

  /// Throws ConfigError where `vocabulary` breaks a rule of vocabulary.h.
  explicit WordPieceModel(Vocabulary vocabulary);

  std::unique_ptr<TextEncoder> encoder(int cache_bits) const override;

  /// Appends the tokens of one word; the unknown token where it has none or too many characters.
  void encode_word(std::string_view word, std::string& scratch, std::vector<std::int32_t>& out) const;
  /// Bytes of a word that a token takes; `goes_on`: not at its beginning.
  std::size_t piece_size(std::int32_t id, bool goes_on) const {
    return vocabulary().tokens[static_cast<std::size_t>(id)].size() - (goes_on ? options().prefix.size() : 0);
  }

 private:
  const WordPiece& options() const { return *vocabulary().word_piece; }

  void index_pieces();
  /// Bytes of the longest piece at word[at …) that is a token, whose id it sets; 0 where there is none.
  std::size_t longest_piece(std::string_view word, std::size_t at, std::size_t readable, std::int32_t& id) const;

  std::int32_t unknown_ = 0;
  // What begins a word is a token as it is, what continues one a token without its prefix.
  PieceTable pieces_;             // of at most 15 bytes; what continues a word is marked
  std::array<ByteTrie, 2> long_;  // what has more, and what of it continues a word
};

}  // namespace megatron::text
