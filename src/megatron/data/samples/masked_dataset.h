#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/data/dataset.h"
#include "megatron/data/samples/masked_samples.h"
#include "megatron/data/samples/masking.h"
#include "megatron/data/samples/sentence_samples.h"

// What BertDataset and T5Dataset share. A `Set` is one of them; besides its own get() it has
//   Spec                                   options: source, seq_length, masking, and those of its own
//   static SentenceBounds bounds_of(spec)  what its samples ask of the sentences in them
//   static MaskingVocabulary vocabulary_of(tokenizer)
//   static void build(spec, say)
//   SampleFields fields() const
//   PairInfo training_sample(i, const Sample&) const: its fields of one; labels that do not count are -1
namespace megatron::data {

template <class Options>
class MaskedDataset {
 public:
  using Spec = Options;

  /// Samples there are, at least spec.source.num_samples.
  std::int64_t size() const { return samples_.size(); }
  std::int64_t seq_length() const { return spec_.seq_length; }
  const std::string& prefix() const { return samples_.prefix(); }

 protected:
  MaskedDataset(const Spec& spec, MaskingVocabulary vocabulary, const SentenceBounds& bounds)
      : spec_(spec), masker_(spec.masking, std::move(vocabulary)), samples_(spec.source, bounds) {}

  Spec spec_;
  Masker masker_;
  SentenceSamples samples_;
};

/// A Set for a training step: labels that do not count are 0.
template <class Set>
class TrainingSamples final : public Dataset {
 public:
  TrainingSamples(const typename Set::Spec& spec, MaskingVocabulary vocabulary) : set_(spec, std::move(vocabulary)) {}

  std::int64_t size() const override { return set_.size(); }
  std::int64_t seq_length() const override { return set_.seq_length(); }
  SampleFields fields() const override { return set_.fields(); }
  void get(std::int64_t i, const Sample& out) const override {
    const PairInfo pair = set_.training_sample(i, out);
    std::ranges::replace(out.labels, std::int64_t{-1}, std::int64_t{0});
    std::iota(out.position_ids.begin(), out.position_ids.end(), std::int64_t{0});
    std::ranges::fill(out.first_key, 0);
    if (out.pair != nullptr) *out.pair = pair;
  }
  std::string name_of(std::int64_t i) const override { return concat(set_.prefix(), ", sample ", i); }

 private:
  Set set_;
};

/// Sets of a blend, each as `spec` says: source and length are the blend's.
template <class Set>
class MaskedSamplesOf final : public MaskedSamples {
 public:
  explicit MaskedSamplesOf(const typename Set::Spec& spec)
      : MaskedSamples(spec.source.short_probability), spec_(spec) {}

  SentenceBounds bounds(std::int64_t seq_length) const override {
    return Set::bounds_of(with(spec_.source, seq_length));
  }
  void check(const text::Tokenizer& tokenizer) const override { Masker(spec_.masking, Set::vocabulary_of(tokenizer)); }
  std::unique_ptr<const Dataset> open(const SentenceSource& source, std::int64_t seq_length,
                                      const text::Tokenizer& tokenizer, const WaitMessage& say) const override {
    const typename Set::Spec spec = with(source, seq_length);
    Set::build(spec, say);
    return std::make_unique<TrainingSamples<Set>>(spec, Set::vocabulary_of(tokenizer));
  }

 private:
  typename Set::Spec with(const SentenceSource& source, std::int64_t seq_length) const {
    typename Set::Spec spec = spec_;
    spec.source = source;
    spec.seq_length = seq_length;
    return spec;
  }

  typename Set::Spec spec_;
};

}  // namespace megatron::data
