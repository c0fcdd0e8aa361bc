#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "megatron/text/vocabulary.h"

// T5's <extra_id_N>, which stand for spans that are left out. Its SentencePiece model has none: they follow its pieces,
// the last first.
namespace megatron::text {

/// Adds them to the vocabulary of a SentencePiece model in `folder`: as many as extra_ids of tokenizer_config.json
/// says, or 100 where that, or without it config.json, is a T5's, as transformers does. Leaves a vocabulary that has
/// some as it is. Throws ConfigError where extra_ids is no number or above 100000.
void add_sentinels(const std::filesystem::path& folder, Vocabulary& vocabulary);

/// Adds what Megatron-LM's --vocab-extra-ids adds to BERT's WordPiece, each token unless it is there: [BOS], [EOS],
/// <extra_id_0> to <extra_id_(count - 1)>, in this order, behind the others. Nothing for a count of 0. Throws
/// ConfigError, naming `name`, for another model than WordPiece and for a count that is not from 0 to 100000.
void add_extra_ids(std::int64_t count, const std::string& name, Vocabulary& vocabulary);

/// How many special tokens of a SentencePiece model are such.
std::size_t count_sentinels(const Vocabulary& vocabulary);

}  // namespace megatron::text
