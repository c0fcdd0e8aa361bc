#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "megatron/data/index/numpy_random.h"
#include "megatron/data/samples/masking_vocabulary.h"

namespace megatron::data {

/// Which tokens of a sample are hidden from the model. The defaults are those of BERT's training in the paper.
struct MaskingOptions {
  double probability = 0.15;   ///< share of the tokens
  std::int64_t max_ngram = 3;  ///< words (or tokens) hidden together: 1 … max_ngram, n with probability ~ 1/n
  bool whole_words = true;     ///< all pieces of a word are hidden together
  bool favor_longer = false;   ///< n with the probability of max_ngram + 1 - n instead
  bool geometric = false;      ///< n is geometric with p = 0.2, at most max_ngram: T5's spans
  bool permute = false;        ///< as many tokens again change places among themselves (BERT only)
  /// Of the lengths of the n-grams that change places: Megatron-Core takes them from numpy's global generator, which
  /// depends on what ran before; here every sample takes them from a generator of this seed.
  std::uint32_t permute_seed = 0;
};

/// How much may be hidden, beyond the share. T5's spans must find sentinels and fit the decoder.
struct MaskingRoom {
  std::int64_t spans = std::numeric_limits<std::int64_t>::max();
  std::int64_t tokens = std::numeric_limits<std::int64_t>::max();  ///< hidden tokens and spans, added
};

/// What was hidden in one sample. Used again for another one it allocates nothing.
struct MaskedTokens {
  /// The n-gram positions[first, last).
  struct Span {
    std::int32_t first, last;
  };
  std::vector<std::int64_t> labels;     ///< [tokens]: the token that stood there, -1 where nothing was hidden or moved
  std::vector<std::int32_t> positions;  ///< tokens that may be hidden, all but [CLS] and [SEP], in order
  std::vector<Span> spans;              ///< hidden, in the order in which they were drawn; they do not overlap
  std::int64_t hidden = 0;              ///< tokens in spans

  // Scratch.
  std::vector<std::int32_t> words;  ///< where each word begins in positions, and the end
  std::vector<std::int32_t> order;
  std::vector<std::uint8_t> taken;  ///< by positions
  std::vector<std::int32_t> moved;
  std::vector<std::int64_t> values;
};

/// Hides n-grams of words, equal to Megatron-Core's MaskedWordPieceDataset for the same state of the generator: words
/// in shuffled order, for each a length, shortened until it fits what is left of the share; taken unless it meets a
/// hidden one.
class Masker {
 public:
  /// Throws ConfigError for options out of range.
  Masker(const MaskingOptions& options, MaskingVocabulary vocabulary);

  const MaskingVocabulary& vocabulary() const { return vocabulary_; }

  /// BERT: of the hidden tokens 80 % become [MASK], 10 % any token, 10 % stay; `tokens` is changed. Every token must be
  /// one of the vocabulary. `target`: tokens that the sample aimed at, which bound the share for short ones.
  void mask(std::span<std::int64_t> tokens, std::int64_t target, NumpyRandom& random, MaskedTokens& out) const;

  /// T5: only chooses the spans; `out.spans` is then sorted by place.
  void choose_spans(std::span<const std::int64_t> tokens, std::int64_t target, const MaskingRoom& room,
                    NumpyRandom& random, MaskedTokens& out) const;

 private:
  double start(std::span<const std::int64_t> tokens, std::int64_t target, NumpyRandom& random, MaskedTokens& out) const;
  std::int64_t length_of_ngram(NumpyRandom& random) const;
  void permute(std::span<std::int64_t> tokens, double limit, NumpyRandom& random, MaskedTokens& out) const;
  template <class Hide>
  void hide_ngrams(double limit, const MaskingRoom& room, NumpyRandom& random, MaskedTokens& out, Hide hide) const;

  MaskingOptions options_;
  MaskingVocabulary vocabulary_;
  std::vector<double> cumulative_;  // of the n-grams' lengths
};

}  // namespace megatron::data
