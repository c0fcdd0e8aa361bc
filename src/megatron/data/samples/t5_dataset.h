#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "megatron/data/samples/masked_dataset.h"

namespace megatron::data {

struct T5DatasetSpec {
  SentenceSource source = {};
  std::int64_t seq_length = 512;          ///< of the encoder
  std::int64_t decoder_seq_length = 128;  ///< holds the begin token, and each span behind its sentinel
  MaskingOptions masking = {.max_ngram = 10, .geometric = true};
};

/// What samples of `seq_length` ask of the sentences in them.
SentenceBounds t5_bounds(std::int64_t seq_length);

/// Where a sample is written: each span has seq_length or decoder_seq_length elements, or none for what is not wanted.
struct T5Sample {
  std::span<std::int64_t> encoder_tokens = {};  ///< the text, a sentinel for each span; then padding
  std::span<std::int64_t> decoder_tokens = {};  ///< the begin token, then each span behind its sentinel; then padding
  std::span<std::int64_t> labels = {};          ///< the decoder's next token, at last the end token; then -1
  std::span<float> loss_mask = {};              ///< 1 where there is a label, else 0 (decoder)
};

/// What else there is to know of a sample.
struct T5SampleInfo {
  /// Tokens before the padding: the keys that self attention and cross attention (the encoder's) may see. The encoder's
  /// is 0 where all sentences of the sample are empty.
  std::int64_t encoder_length = 0, decoder_length = 0;
  bool truncated = false;  ///< the sentences had more tokens than the sample aimed at
};

/// Samples of T5's span corruption, equal to Megatron-Core's T5MaskedWordPieceDataset for the same seed and vocabulary.
/// Where the spans of a sample would not find sentinels or fit the decoder, which ends a run of Megatron-Core, fewer
/// are hidden.
class T5Dataset : public MaskedDataset<T5DatasetSpec> {
 public:
  /// Builds the index of sentences unless it is there; every rank calls it. Throws ConfigError as SentenceSamples does.
  static void build(const T5DatasetSpec& spec, const WaitMessage& say = {});

  /// Throws ConfigError when the index is missing or damaged, or an option out of range.
  T5Dataset(const T5DatasetSpec& spec, MaskingVocabulary vocabulary);

  std::int64_t decoder_seq_length() const { return spec_.decoder_seq_length; }

  /// As BertDataset::get().
  T5SampleInfo get(std::int64_t i, const T5Sample& out) const;

  // What masked_dataset.h asks for.
  static SentenceBounds bounds_of(const T5DatasetSpec& spec);
  static MaskingVocabulary vocabulary_of(const text::Tokenizer& tokenizer);
  SampleFields fields() const;
  PairInfo training_sample(std::int64_t i, const Sample& out) const;
};

using T5Samples = TrainingSamples<T5Dataset>;

/// The datasets of a blend, each as `spec` says: source and length are the blend's.
std::shared_ptr<const MaskedSamples> masked_samples(const T5DatasetSpec& spec);

}  // namespace megatron::data
