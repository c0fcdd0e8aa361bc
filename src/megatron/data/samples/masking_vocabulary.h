#pragma once
#include <cstdint>
#include <vector>

#include "megatron/text/tokenizer.h"

namespace megatron::data {

/// What masking must know of a tokenizer, as plain data. -1: the vocabulary has no such token.
struct MaskingVocabulary {
  std::int64_t size = 0;  ///< ids are 0 … size - 1; random replacements are drawn from all of them
  std::int64_t pad = -1;
  std::int64_t cls = -1, sep = -1;           ///< frame BERT's segments; never masked
  int separators = 1;                        ///< so many sep between two texts: of a RoBERTa 2
  std::int64_t mask = -1;                    ///< BERT's
  std::int64_t begin = -1, end = -1;         ///< of T5's decoder
  std::vector<std::uint8_t> continues = {};  ///< [size]: 1 where the token continues a word ("##ing")
  std::vector<std::int64_t> sentinels = {};  ///< T5's <extra_id_0>, <extra_id_1>, … in order of use
};

/// [PAD], [CLS], [SEP], [MASK] and the word pieces of `tokenizer`; or <pad>, <s>, </s> and <mask>, as a RoBERTa has
/// them, which cuts no words into pieces. Throws ConfigError that names what is missing.
MaskingVocabulary bert_vocabulary(const text::Tokenizer& tokenizer);

/// [PAD] or <pad>; [BOS] or <s>, else the padding, with which the published T5 models begin; [EOS] or </s>; the
/// sentinels from <extra_id_0> on; [CLS] and [SEP] where there are such. Throws ConfigError that names what is missing.
MaskingVocabulary t5_vocabulary(const text::Tokenizer& tokenizer);

}  // namespace megatron::data
