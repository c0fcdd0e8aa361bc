#pragma once
#include "megatron/text/tokenizer_model.h"

namespace megatron::text {

/// WordPiece over BERT's words (Devlin et al. 2019): of each word the longest piece that is a token, again and again.
class WordPieceModel : public TokenizerModel {
 public:
  /// Throws ConfigError where `vocabulary` breaks a rule of vocabulary.h.
  explicit WordPieceModel(Vocabulary vocabulary);

  std::unique_ptr<TextEncoder> encoder(int cache_bits) const override;
  /// Words with a blank between, pieces joined; blanks before signs and contractions go, with `cleanup`.
  std::string decode(std::span<const std::int32_t> ids) const override;

  /// Appends the tokens of one word; the unknown token where it has none or too many characters.
  void encode_word(std::string_view word, std::string& scratch, std::vector<std::int32_t>& out) const;

 private:
  const WordPiece& options() const { return *vocabulary().word_piece; }

  std::int32_t unknown_ = 0;
  std::size_t longest_ = 0;  ///< bytes of the longest token
};

}  // namespace megatron::text
