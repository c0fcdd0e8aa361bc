#pragma once
#include <cstdint>
#include <memory>

#include "megatron/data/dataset.h"
#include "megatron/data/samples/sentence_samples.h"
#include "megatron/text/tokenizer.h"

namespace megatron::data {

/// Samples of sentences some of whose tokens are hidden, with the options that are theirs alone.
class MaskedSamples {
 public:
  explicit MaskedSamples(double short_seq_prob) : short_probability(short_seq_prob) {}
  virtual ~MaskedSamples() = default;
  MaskedSamples(const MaskedSamples&) = delete;
  MaskedSamples& operator=(const MaskedSamples&) = delete;

  /// What samples of `seq_length` ask of the sentences in them.
  virtual SentenceBounds bounds(std::int64_t seq_length) const = 0;
  /// Throws ConfigError that names the tokenizer's missing token or an option that is out of range.
  virtual void check(const text::Tokenizer& tokenizer) const = 0;
  /// Builds the index of sentences unless it is there, and opens it. Every rank calls it.
  virtual std::unique_ptr<const Dataset> open(const SentenceSource& source, std::int64_t seq_length,
                                              const text::Tokenizer& tokenizer, const WaitMessage& say) const = 0;

  const double short_probability;  ///< share of the samples that aim at a random shorter length
};

}  // namespace megatron::data
