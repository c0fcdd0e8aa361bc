#include "megatron/data/samples/bert_dataset.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

constexpr std::int64_t kFrame = 3;  // [CLS], [SEP], [SEP]

/// Tokens [skip, skip + size) of the sentences from `first` on.
struct Segment {
  std::int64_t first = 0, skip = 0, size = 0;
};

/// Takes tokens off the longer segment (the second of two equal ones), in front or behind, until `target` are left.
bool truncate(Segment& a, Segment& b, std::int64_t target, NumpyRandom& random) {
  if (a.size + b.size <= target) return false;
  while (a.size + b.size > target) {
    Segment& longer = a.size > b.size ? a : b;
    if (random.random() < 0.5) ++longer.skip;
    --longer.size;
  }
  return true;
}

template <class T>
void pad(std::span<T> out, std::size_t from, T value) {
  if (!out.empty()) std::fill(out.begin() + static_cast<std::ptrdiff_t>(from), out.end(), value);
}

}  // namespace

SentenceBounds bert_bounds(std::int64_t seq_length, bool sentence_order) {
  return {.max_tokens = seq_length - kFrame, .min_sentences = sentence_order ? 2 : 1};
}

void BertDataset::build(const BertDatasetSpec& spec, const WaitMessage& say) {
  SentenceSamples::build(spec.source, bounds_of(spec), say);
}

BertDataset::BertDataset(const BertDatasetSpec& spec, MaskingVocabulary vocabulary)
    : MaskedDataset(spec, std::move(vocabulary), bounds_of(spec)) {
  const MaskingVocabulary& has = masker_.vocabulary();
  if (std::min({has.pad, has.cls, has.sep, has.mask}) < 0) throw std::logic_error("BertDataset: no bert_vocabulary()");
}

BertSampleInfo BertDataset::get(std::int64_t i, const BertSample& out) const {
  const auto n = static_cast<std::size_t>(seq_length());
  const auto fits = [n](const auto& span) { return span.empty() || span.size() == n; };
  if (!fits(out.tokens) || !fits(out.types) || !fits(out.labels) || !fits(out.loss_mask))
    throw std::logic_error(concat("BertDataset::get: spans must have ", n, " elements"));
  const MaskingVocabulary& vocabulary = masker_.vocabulary();
  const SentenceRun run = samples_.run(i);
  NumpyRandom random(samples_.seed_of(i));
  BertSampleInfo info;

  std::int64_t pivot = run.last;
  if (spec_.sentence_order) {
    pivot = run.first + (run.last - run.first >= 3 ? random.integer(1, run.last - run.first) : 1);
    info.is_random = random.random() < 0.5;
  }
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  Segment a{.first = run.first, .size = samples_.tokens(run.first, pivot, kAll)};
  Segment b{.first = pivot, .size = samples_.tokens(pivot, run.last, kAll)};
  if (info.is_random) std::swap(a, b);
  info.truncated = truncate(a, b, run.target, random);

  const auto size_a = static_cast<std::size_t>(a.size), size_b = static_cast<std::size_t>(b.size);
  const std::size_t begin_b = size_a + 2, length = begin_b + (size_b > 0 ? size_b + 1 : 0);
  std::vector<std::int64_t> text(length);
  text[0] = vocabulary.cls;
  samples_.read(a.first, a.skip, vocabulary.size, std::span(text).subspan(1, size_a));
  text[size_a + 1] = vocabulary.sep;
  if (size_b > 0) {
    samples_.read(b.first, b.skip, vocabulary.size, std::span(text).subspan(begin_b, size_b));
    text[length - 1] = vocabulary.sep;
  }
  MaskedTokens masked;
  masker_.mask(text, run.target, random, masked);

  info.length = static_cast<std::int64_t>(length);
  if (!out.tokens.empty()) std::ranges::copy(text, out.tokens.begin());
  if (!out.labels.empty()) std::ranges::copy(masked.labels, out.labels.begin());
  for (std::size_t k = 0; k < length; ++k) {
    if (!out.types.empty()) out.types[k] = k < begin_b ? 0 : 1;
    if (!out.loss_mask.empty()) out.loss_mask[k] = masked.labels[k] >= 0 ? 1.0f : 0.0f;
  }
  pad(out.tokens, length, vocabulary.pad);
  pad(out.types, length, std::int64_t{0});
  pad(out.labels, length, std::int64_t{-1});
  pad(out.loss_mask, length, 0.0f);
  return info;
}

SentenceBounds BertDataset::bounds_of(const BertDatasetSpec& spec) {
  return bert_bounds(spec.seq_length, spec.sentence_order);
}

MaskingVocabulary BertDataset::vocabulary_of(const text::Tokenizer& tokenizer) { return bert_vocabulary(tokenizer); }

SampleFields BertDataset::fields() const {
  return {.loss_mask = true, .position_ids = false, .first_key = false, .pairs = true};
}

PairInfo BertDataset::training_sample(std::int64_t i, const Sample& out) const {
  const BertSampleInfo info =
      get(i, BertSample{.tokens = out.tokens, .types = out.types, .labels = out.labels, .loss_mask = out.loss_mask});
  return {.length = info.length, .swapped = info.is_random};
}

std::shared_ptr<const MaskedSamples> masked_samples(const BertDatasetSpec& spec) {
  return std::make_shared<MaskedSamplesOf<BertDataset>>(spec);
}

}  // namespace megatron::data
