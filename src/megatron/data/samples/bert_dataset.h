#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "megatron/data/samples/masked_dataset.h"

namespace megatron::data {

struct BertDatasetSpec {
  SentenceSource source = {};
  std::int64_t seq_length = 512;
  bool sentence_order = true;  ///< a sample is two segments, swapped in half of them; else one
  MaskingOptions masking = {};
};

/// What samples of `seq_length` ask of the sentences in them; two of them for the order of sentences.
SentenceBounds bert_bounds(std::int64_t seq_length, bool sentence_order);

/// Where a sample is written: each span has seq_length elements, or none for what is not wanted.
struct BertSample {
  std::span<std::int64_t> tokens = {};  ///< [CLS] A [SEP] B [SEP], or [CLS] A [SEP], with masks; then padding
  std::span<std::int64_t> types = {};   ///< 0 up to the first [SEP], 1 up to the second, 0 in the padding
  std::span<std::int64_t> labels = {};  ///< the token that stood there where the loss counts, else -1
  std::span<float> loss_mask = {};      ///< 1 where the token was masked (replaced, kept or moved included), else 0
};

/// What else there is to know of a sample.
struct BertSampleInfo {
  std::int64_t length = 0;  ///< tokens before the padding: the keys that attention may see
  bool is_random = false;   ///< the segments are swapped: the sentence-order label
  bool truncated = false;   ///< the sentences had more tokens than the sample aimed at
};

/// Samples of BERT, equal to Megatron-Core's BERTMaskedWordPieceDataset for the same seed and vocabulary.
///
///   BertDataset::build(spec);
///   const BertDataset train(spec, bert_vocabulary(tokenizer));
///   train.get(sample_number % train.size(), {.tokens = …, .types = …, .labels = …, .loss_mask = …});
class BertDataset : public MaskedDataset<BertDatasetSpec> {
 public:
  /// Builds the index of sentences unless it is there; every rank calls it. Throws ConfigError as SentenceSamples does.
  static void build(const BertDatasetSpec& spec, const WaitMessage& say = {});

  /// Throws ConfigError when the index is missing or damaged, or an option out of range.
  BertDataset(const BertDatasetSpec& spec, MaskingVocabulary vocabulary);

  /// Writes sample `i` of [0, size()) into the caller's buffers: a function of the spec, the data and `i` alone. Safe
  /// from several threads. Throws std::out_of_range for another `i`, std::logic_error for spans of another length,
  /// ConfigError for a damaged file.
  BertSampleInfo get(std::int64_t i, const BertSample& out) const;

  // What masked_dataset.h asks for.
  static SentenceBounds bounds_of(const BertDatasetSpec& spec);
  static MaskingVocabulary vocabulary_of(const text::Tokenizer& tokenizer);
  SampleFields fields() const;
  PairInfo training_sample(std::int64_t i, const Sample& out) const;
};

using BertSamples = TrainingSamples<BertDataset>;

/// The datasets of a blend, each as `spec` says: source and length are the blend's.
std::shared_ptr<const MaskedSamples> masked_samples(const BertDatasetSpec& spec);

}  // namespace megatron::data
