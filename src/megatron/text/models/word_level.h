#pragma once
#include "megatron/text/models/tokenizer_model.h"

namespace megatron::text {

/// Whole pieces as tokens: see WordLevel in vocabulary.h.
class WordLevelModel : public TokenizerModel {
 public:
  /// Throws ConfigError where `vocabulary` breaks a rule of vocabulary.h.
  explicit WordLevelModel(Vocabulary vocabulary);
  std::unique_ptr<TextEncoder> encoder(int cache_bits) const override;

  /// Id of a piece, or of the unknown one. Throws ConfigError where there is neither.
  std::int32_t id_of(std::string_view piece) const;

 private:
  std::int32_t unknown_ = -1;
};

/// Megatron's null tokenizer: text is numbers 0 … size - 1 with spaces between, and an <|endoftext|> behind them.
Vocabulary null_vocabulary(std::int32_t size);

}  // namespace megatron::text
