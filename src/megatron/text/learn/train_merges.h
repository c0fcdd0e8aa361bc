#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace megatron::text {

/// What training of BPE and of WordPiece share.
struct TrainOptions {
  std::int64_t vocab_size = 0;     ///< Special tokens and alphabet included.
  std::int64_t min_frequency = 2;  ///< Pairs that occur less often are not merged.
  std::vector<std::string> specials = {"<|endoftext|>"};

  /// Throws ConfigError where vocab_size has no room for specials and `alphabet` more, min_frequency is below 1, or a
  /// special token is empty, a single byte (which text has too), not UTF-8 (which tokenizer.json cannot hold) or named
  /// twice.
  void check(std::int64_t alphabet) const;
};

/// Called with the number of tokens so far, a few hundred times.
using TrainProgress = std::function<void(std::int64_t tokens)>;

/// Tokens and the merges that make them.
struct LearnedMerges {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;
};

/// A word, as the ids of its symbols, and how often it occurs.
struct TrainWords {
  std::vector<std::int32_t> symbols;  ///< of all words, one behind the other
  std::vector<std::uint32_t> lengths;
  std::vector<std::int64_t> counts;
};

/// Learns merges: again and again the most frequent pair of neighbours becomes one token (Sennrich et al. 2016, section
/// 3.2), as Hugging Face's BpeTrainer does it: of pairs that are equally frequent the one with the smaller ids goes
/// first. `tokens` are what there is to begin with; a token that continues a word begins with `prefix`, which a merge
/// leaves out of its right half. Ends with options.vocab_size tokens, or where no pair occurs min_frequency times.
LearnedMerges learn_merges(std::vector<std::string> tokens, TrainWords words, const TrainOptions& options,
                           const std::string& prefix, const TrainProgress& progress);

}  // namespace megatron::text
