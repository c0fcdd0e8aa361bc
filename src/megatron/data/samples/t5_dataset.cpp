#include "megatron/data/samples/t5_dataset.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

void check(const T5DatasetSpec& spec) {
  if (spec.decoder_seq_length < 3 || spec.decoder_seq_length > kMaxSample)
    throw ConfigError(rule_got_fix(concat("the decoder's sequence length must be 3 to ", kMaxSample, "."),
                                   concat(spec.decoder_seq_length),
                                   "--data.decoder_seq_length 0 (the default), a quarter of the encoder's"));
  if (spec.masking.permute)
    throw ConfigError(
        rule_got_fix("tokens of T5's samples cannot change places.", "the masking option permute", "without it"));
}

/// Appends to a caller's span, or nowhere.
template <class T>
class Appender {
 public:
  explicit Appender(std::span<T> out) : out_(out) {}
  void operator()(T value) {
    if (!out_.empty()) out_[size_] = value;
    ++size_;
  }
  std::int64_t size() const { return static_cast<std::int64_t>(size_); }
  void pad(T value) {
    if (!out_.empty()) std::fill(out_.begin() + static_cast<std::ptrdiff_t>(size_), out_.end(), value);
  }

 private:
  std::span<T> out_;
  std::size_t size_ = 0;
};

}  // namespace

SentenceBounds t5_bounds(std::int64_t seq_length) { return {.max_tokens = seq_length - 2}; }

void T5Dataset::build(const T5DatasetSpec& spec, const WaitMessage& say) {
  check(spec);
  SentenceSamples::build(spec.source, t5_bounds(spec.seq_length), say);
}

T5Dataset::T5Dataset(const T5DatasetSpec& spec, MaskingVocabulary vocabulary)
    : MaskedDataset(spec, std::move(vocabulary), bounds_of(spec)) {
  check(spec);
  const MaskingVocabulary& has = masker_.vocabulary();
  if (std::min({has.pad, has.begin, has.end}) < 0) throw std::logic_error("T5Dataset: no t5_vocabulary()");
}

T5SampleInfo T5Dataset::get(std::int64_t i, const T5Sample& out) const {
  const auto fits = [](const auto& span, std::int64_t n) { return span.empty() || std::ssize(span) == n; };
  if (!fits(out.encoder_tokens, seq_length()) || !fits(out.decoder_tokens, decoder_seq_length()) ||
      !fits(out.labels, decoder_seq_length()) || !fits(out.loss_mask, decoder_seq_length()))
    throw std::logic_error(concat("T5Dataset::get: spans must have ", seq_length(), " elements, or ",
                                  decoder_seq_length(), " for the decoder"));
  const MaskingVocabulary& vocabulary = masker_.vocabulary();
  const SentenceRun run = samples_.run(i);
  NumpyRandom random(samples_.seed_of(i));
  const std::int64_t tokens = samples_.tokens(run.first, run.last, run.target);
  std::vector<std::int64_t> text(static_cast<std::size_t>(std::min(tokens, run.target)));
  samples_.read(run.first, 0, vocabulary.size, text);
  MaskedTokens masked;
  const MaskingRoom room{.spans = std::ssize(vocabulary.sentinels), .tokens = decoder_seq_length() - 1};
  masker_.choose_spans(text, run.target, room, random, masked);

  Appender encoder(out.encoder_tokens), decoder(out.decoder_tokens), labels(out.labels);
  Appender loss_mask(out.loss_mask);
  const auto both = [&](std::int64_t token) {
    decoder(token);
    labels(token);
  };
  decoder(vocabulary.begin);
  std::size_t at = 0;
  for (std::size_t s = 0; s < masked.spans.size(); ++s) {
    const auto positions = std::span(masked.positions)
                               .subspan(static_cast<std::size_t>(masked.spans[s].first),
                                        static_cast<std::size_t>(masked.spans[s].last - masked.spans[s].first));
    for (; at < static_cast<std::size_t>(positions.front()); ++at) encoder(text[at]);
    at = static_cast<std::size_t>(positions.back()) + 1;
    encoder(vocabulary.sentinels[s]);
    both(vocabulary.sentinels[s]);
    for (const std::int32_t position : positions) both(text[static_cast<std::size_t>(position)]);
  }
  for (; at < text.size(); ++at) encoder(text[at]);
  labels(vocabulary.end);
  for (std::int64_t k = 0; k < decoder.size(); ++k) loss_mask(1.0f);

  encoder.pad(vocabulary.pad);
  decoder.pad(vocabulary.pad);
  labels.pad(-1);
  loss_mask.pad(0.0f);
  return {encoder.size(), decoder.size(), tokens > run.target};
}

SentenceBounds T5Dataset::bounds_of(const T5DatasetSpec& spec) { return t5_bounds(spec.seq_length); }

MaskingVocabulary T5Dataset::vocabulary_of(const text::Tokenizer& tokenizer) { return t5_vocabulary(tokenizer); }

SampleFields T5Dataset::fields() const { return {.loss_mask = true, .decoder_length = decoder_seq_length()}; }

PairInfo T5Dataset::training_sample(std::int64_t i, const Sample& out) const {
  const T5SampleInfo info = get(i, {.encoder_tokens = out.tokens,
                                    .decoder_tokens = out.decoder_tokens,
                                    .labels = out.labels,
                                    .loss_mask = out.loss_mask});
  return {.length = info.encoder_length};
}

std::shared_ptr<const MaskedSamples> masked_samples(const T5DatasetSpec& spec) {
  return std::make_shared<MaskedSamplesOf<T5Dataset>>(spec);
}

}  // namespace megatron::data
