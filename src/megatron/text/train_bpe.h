#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megatron/text/piece_counter.h"
#include "megatron/text/vocabulary.h"

namespace megatron::text {

struct TrainBpeOptions {
  std::int64_t vocab_size = 0;     ///< Special tokens and the 256 bytes included.
  std::int64_t min_frequency = 2;  ///< Pairs that occur less often are not merged.
  std::vector<std::string> specials = {"<|endoftext|>"};

  /// Throws ConfigError where vocab_size has no room for specials and bytes, or a special token is empty, a single byte
  /// (which has its token already), not UTF-8 (which tokenizer.json cannot hold) or named twice.
  void check() const;
};

/// Learns merges from the counted pieces: again and again the most frequent pair of neighbours becomes one token
/// (Sennrich et al. 2016, section 3.2). Ids: special tokens, the 256 bytes in the order of their spelling, merges.
///
/// Equal to Hugging Face's BpeTrainer with initial_alphabet = ByteLevel.alphabet(): of pairs that are equally frequent
/// the one with the smaller ids goes first. Stops early where no pair occurs min_frequency times. `progress` is called
/// with the number of tokens so far, a few hundred times. Calls options.check().
Vocabulary train_bpe(const PieceCounter& pieces, const TrainBpeOptions& options,
                     const std::function<void(std::int64_t tokens)>& progress = {});

}  // namespace megatron::text
