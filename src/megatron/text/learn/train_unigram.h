#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "megatron/text/learn/train_merges.h"

namespace megatron::text {

/// What every Unigram vocabulary has: <unk>, <s> and </s>.
inline constexpr std::int64_t kUnigramAlphabet = 3;

/// Learns a Unigram model (Kudo 2018) from the documents that `next` gives (as count_pieces describes it) with the
/// SentencePiece library, and returns what its `.model` file holds. Ids: <unk>, <s>, </s>, special tokens (control
/// symbols of the model), pieces from likely to rare. There are no merges: min_frequency has no effect. The same texts
/// give the same model, on any number of cores. Keeps the text in memory.
///
/// The library learns from lines; those of more than 4000 bytes are cut at spaces. Throws ConfigError for options that
/// it refuses, such as more tokens than the text has use for, and where no document has a character.
std::string train_unigram(const std::function<bool(std::string&)>& next, const TrainOptions& options);

}  // namespace megatron::text
