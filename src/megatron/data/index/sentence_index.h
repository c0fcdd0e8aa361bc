#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "megatron/data/files/indexed_dataset.h"

// Which sentences make a sample of BERT or T5, as Megatron-Core's build_mapping computes it: each document, whose
// sequences are sentences, is cut into runs of sentences that reach a length; a share of the runs aims at a shorter
// one; the runs of all passes are shuffled.
namespace megatron::data {

/// Documents [first, last) of a pair.
struct DocumentRange {
  std::int64_t first = 0, last = 0;
};

/// Tokens of the longest sentence in a document that is used; documents of one sentence are used whatever its length.
inline constexpr std::int64_t kMaxSentence = 512;

/// Everything that decides the sentences of the samples.
struct SentenceIndexSpec {
  std::int64_t max_tokens = 0;                   ///< what a sample aims at: tokens of text, without [CLS] and the like
  std::int64_t min_sentences = 1;                ///< of a sample
  double short_probability = 0.1;                ///< share of the samples that aim at a random shorter length
  std::uint64_t seed = 1234;                     ///< below 2^31 - 1, as Megatron-Core demands
  std::optional<std::int64_t> num_samples = {};  ///< at least so many, by whole passes; nothing: `passes` of them
  std::int64_t passes = 1;
};

/// Throws ConfigError for a spec out of range, in the terms of the caller's options.
void check_sentence_index(const SentenceIndexSpec& spec);

/// Throws the ConfigErrors of build_sentence_index() that are seen before samples are made: samples asked and no
/// document that can give one, or a damaged pair.
void check_sentence_range(const IndexedDataset& data, const DocumentRange& range, const SentenceIndexSpec& spec);

/// Told how far a pass over the samples is: "count", "write" and "shuffle", how many are done of how many; 0: of an
/// unknown number. Called now and then, and at each one's end.
using IndexProgress = std::function<void(const char*, std::int64_t, std::int64_t)>;

/// Writes the index, uint32 [samples, 3]: first sentence, end sentence, tokens aimed at. Returns the number of samples.
/// Memory: one byte a document; the rows lie in the mapped file. Throws ConfigError when samples are asked and no
/// document can give one, when the pair is damaged, or when the disk has no room.
std::int64_t build_sentence_index(const IndexedDataset& data, const DocumentRange& range, const SentenceIndexSpec& spec,
                                  const std::string& file, const IndexProgress& progress = {});

}  // namespace megatron::data
