#pragma once
#include "megatron/text/learn/piece_counter.h"
#include "megatron/text/learn/train_merges.h"
#include "megatron/text/vocabulary.h"

namespace megatron::text {

/// The alphabet of byte-level BPE: every byte.
inline constexpr std::int64_t kByteAlphabet = 256;

/// Learns byte-level BPE from the counted pieces (learn_merges). Ids: special tokens, the 256 bytes in the order of
/// their spelling, merges. Equal to Hugging Face's BpeTrainer with initial_alphabet = ByteLevel.alphabet(). Calls
/// options.check(kByteAlphabet).
Vocabulary train_bpe(const PieceCounter& pieces, const TrainOptions& options, const TrainProgress& progress = {});

}  // namespace megatron::text
