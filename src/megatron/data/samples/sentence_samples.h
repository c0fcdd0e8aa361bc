#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/files/npy.h"
#include "megatron/data/index/gpt_index.h"
#include "megatron/data/index/index_cache.h"
#include "megatron/data/index/sentence_index.h"

namespace megatron::data {

/// One part of a .bin/.idx pair whose sequences are sentences (`megatron data preprocess --split-sentences`).
struct SentenceSource {
  std::string prefix;
  std::string split = "969,30,1";  ///< of the documents
  SplitPart part = SplitPart::Train;
  double short_probability = 0.1;                ///< share of the samples that aim at a random shorter length
  std::uint64_t seed = 1234;                     ///< of the order and of the masking; below 2^31 - 1
  std::optional<std::int64_t> num_samples = {};  ///< at least so many, by whole passes; nothing: one pass
  std::string cache_folder = "";                 ///< of the index file; empty: cache/sentence_indices beside the pair
};

/// What a kind of sample asks of the sentences in it.
struct SentenceBounds {
  std::int64_t max_tokens = 0;     ///< of text, which a sample aims at
  std::int64_t min_sentences = 1;  ///< 2: enough for a pair
};

/// The sentences [first, last) of one sample.
struct SentenceRun {
  std::int64_t first = 0, last = 0;
  std::int64_t target = 0;  ///< tokens that the sample aims at; what is beyond is cut off
};

/// The sentences that samples of BERT and T5 are made of, in Megatron-Core's order for the same seed.
///
/// The index lies in a file whose name is a hash of all that decides it, as GptDataset's. Any process may have written
/// it: every row is checked when it is used. Safe from several threads.
class SentenceSamples {
 public:
  /// Builds the index unless it is there. Every rank calls it: the first builds, the others wait as build_once()
  /// describes. Throws ConfigError as check_sentence_index() and build_sentence_index() do.
  static void build(const SentenceSource& source, const SentenceBounds& bounds, const WaitMessage& say = {});

  /// Throws ConfigError when the index is missing or damaged.
  SentenceSamples(const SentenceSource& source, const SentenceBounds& bounds);

  std::int64_t size() const { return index_.shape()[0]; }
  const std::string& prefix() const { return data_.prefix(); }

  /// The sentences of sample `i`. Throws std::out_of_range outside [0, size()), ConfigError for a damaged row.
  SentenceRun run(std::int64_t i) const;

  /// Tokens of the sentences [first, last); counted until they are more than `enough`.
  std::int64_t tokens(std::int64_t first, std::int64_t last, std::int64_t enough) const;

  /// Copies tokens from `skip` on of the sentences from `first` on, laid end to end, until `out` is full: the caller
  /// has counted them. Throws ConfigError for a token outside [0, vocab_size) or a damaged pair.
  void read(std::int64_t first, std::int64_t skip, std::int64_t vocab_size, std::span<std::int64_t> out) const;

  /// The seed of sample `i`'s own generator.
  std::uint32_t seed_of(std::int64_t i) const;

 private:
  SentenceSource source_;
  SentenceBounds bounds_;
  IndexedDataset data_;
  SentenceRun part_;  // the sentences of the documents of the part
  NpyArray index_;
};

/// The documents of a part of a split, rounded as split_ranges().
DocumentRange split_documents(const std::string& split, SplitPart part, const IndexedDataset& data);

/// The cache's name of the index file.
std::string sentence_index_file(const SentenceSource& source, const SentenceBounds& bounds, const IndexedDataset& data);

}  // namespace megatron::data
