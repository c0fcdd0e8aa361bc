#pragma once
#include "megatron/text/learn/piece_counter.h"
#include "megatron/text/learn/train_merges.h"
#include "megatron/text/vocabulary.h"

namespace megatron::text {

struct TrainWordPieceOptions {
  TrainOptions merges{.vocab_size = 0, .specials = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}};
  /// Characters in the alphabet; the rarest are left out, of equals the one with the largest code point.
  std::int64_t limit_alphabet = 1000;
  BertNormalization normalization;  ///< How the words were normalized; the tokenizer does it too.

  /// Throws ConfigError as TrainOptions::check does, where [UNK] is no special token, or limit_alphabet is below 1.
  void check() const;
};

/// Counts the words that BERT's normalization and its pre-tokenizer make of each document.
CountPieces count_bert_words(const BertNormalization& normalization);

/// Learns the tokens of WordPiece from the counted words: learn_merges over their characters, those that continue a
/// word with "##" before them. Ids: special tokens, the alphabet by code point, the same of characters that continue a
/// word, merges. Nothing is merged in words of more than 100 characters, which the tokenizer makes [UNK].
///
/// Else equal to Hugging Face's WordPieceTrainer, but that it gives "##x" their ids in an order that changes from run
/// to run, and with them which of two equally frequent pairs goes first: given the same order, the tokens are the same.
/// Throws ConfigError as options.check() does, and where the alphabet has no room in the vocabulary.
Vocabulary train_word_piece(const PieceCounter& words, const TrainWordPieceOptions& options,
                            const TrainProgress& progress = {});

}  // namespace megatron::text
