#include "megatron/data/samples/masking.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

constexpr std::int64_t kMaxNgram = 128;  // numpy sums longer arrays in blocks
constexpr double kGeometric = 0.2;

void normalize(std::vector<double>& values) {
  const double sum = numpy_sum(values);
  for (double& value : values) value /= sum;
}

/// Running sums of the probabilities of the lengths 1 … max_ngram, as Megatron-Core and numpy come to them.
std::vector<double> cumulative_lengths(const MaskingOptions& options) {
  std::vector<double> values;
  for (std::int64_t n = 1; n <= options.max_ngram; ++n) values.push_back(1.0 / static_cast<double>(n));
  normalize(values);
  if (options.favor_longer) std::reverse(values.begin(), values.end());
  normalize(values);
  std::partial_sum(values.begin(), values.end(), values.begin());
  const double last = values.back();
  for (double& value : values) value /= last;
  return values;
}

void check(const MaskingOptions& options) {
  if (!(options.probability >= 0 && options.probability <= 1))
    throw ConfigError(rule_got_fix("the masking probability must be 0 to 1.", concat(options.probability),
                                   "--mask-prob 0.15 (the default)"));
  if (options.max_ngram < 1 || options.max_ngram > kMaxNgram)
    throw ConfigError(rule_got_fix(concat("the longest n-gram to mask must be 1 to ", kMaxNgram, " words."),
                                   concat(options.max_ngram)));
  if (options.permute && options.geometric)
    throw ConfigError(rule_got_fix("tokens change places only with lengths ~ 1/n.", "geometric lengths and permute",
                                   "choose one of the two"));
}

/// Cuts the tokens that may be hidden into words (or tokens), to `out`.
void cut_words(std::span<const std::int64_t> tokens, const MaskingVocabulary& vocabulary, bool whole_words,
               MaskedTokens& out) {
  out.positions.clear();
  out.words.clear();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t token = tokens[i];
    if (token == vocabulary.cls || token == vocabulary.sep) continue;
    const bool continues = whole_words && vocabulary.continues[static_cast<std::size_t>(token)] != 0;
    if (!continues || out.words.empty()) out.words.push_back(static_cast<std::int32_t>(out.positions.size()));
    out.positions.push_back(static_cast<std::int32_t>(i));
  }
  out.words.push_back(static_cast<std::int32_t>(out.positions.size()));
}

/// The longest n-gram of at most `n` words from `word` on that `room` more tokens have place for; an empty one: none.
MaskedTokens::Span fitting_ngram(const MaskedTokens& out, std::int32_t word, std::int64_t n, double room) {
  const std::int32_t first = out.words[static_cast<std::size_t>(word)];
  const auto words = static_cast<std::int64_t>(out.words.size()) - 1;
  for (; n > 0; --n) {
    const std::int32_t last = out.words[static_cast<std::size_t>(std::min(word + n, words))];
    if (last - first <= room) return {first, last};
  }
  return {first, first};
}

/// Whether nothing of `span` is taken.
bool is_free(const MaskedTokens& out, const MaskedTokens::Span& span) {
  return std::all_of(out.taken.begin() + span.first, out.taken.begin() + span.last, [](auto taken) { return !taken; });
}

}  // namespace

Masker::Masker(const MaskingOptions& options, MaskingVocabulary vocabulary)
    : options_(options), vocabulary_(std::move(vocabulary)) {
  check(options_);
  if (static_cast<std::int64_t>(vocabulary_.continues.size()) != vocabulary_.size)
    throw std::logic_error("Masker: a vocabulary must say of each token whether it continues a word");
  cumulative_ = cumulative_lengths(options_);
}

double Masker::start(std::span<const std::int64_t> tokens, std::int64_t target, NumpyRandom& random,
                     MaskedTokens& out) const {
  cut_words(tokens, vocabulary_, options_.whole_words, out);
  out.labels.assign(tokens.size(), -1);
  out.taken.assign(out.positions.size(), 0);
  out.spans.clear();
  out.hidden = 0;
  out.order.resize(out.words.size() - 1);
  std::iota(out.order.begin(), out.order.end(), 0);
  random.shuffle(std::span(out.order));
  // nearbyint rounds half to even, as Python's round.
  const double share = std::nearbyint(static_cast<double>(tokens.size()) * options_.probability);
  return std::min(options_.probability * static_cast<double>(target), std::max(1.0, share));
}

std::int64_t Masker::length_of_ngram(NumpyRandom& random) const {
  if (options_.geometric) return std::min(random.geometric(kGeometric), options_.max_ngram);
  return 1 + static_cast<std::int64_t>(random.choice(cumulative_));
}

template <class Hide>
void Masker::hide_ngrams(double limit, const MaskingRoom& room, NumpyRandom& random, MaskedTokens& out,
                         Hide hide) const {
  for (const std::int32_t word : out.order) {
    if (static_cast<double>(out.hidden) >= limit) return;
    const std::int64_t n = length_of_ngram(random);
    const auto span = fitting_ngram(out, word, n, limit - static_cast<double>(out.hidden));
    if (span.first == span.last || !is_free(out, span)) continue;
    const auto spans = static_cast<std::int64_t>(out.spans.size()) + 1, size = std::int64_t{span.last - span.first};
    if (spans > room.spans || spans + out.hidden + size > room.tokens) return;
    for (std::int32_t i = span.first; i < span.last; ++i) {
      out.taken[static_cast<std::size_t>(i)] = 1;
      hide(static_cast<std::size_t>(out.positions[static_cast<std::size_t>(i)]));
    }
    out.spans.push_back(span);
    out.hidden += size;
  }
}

void Masker::mask(std::span<std::int64_t> tokens, std::int64_t target, NumpyRandom& random, MaskedTokens& out) const {
  const double limit = start(tokens, target, random, out);
  hide_ngrams(limit, {}, random, out, [&](std::size_t at) {
    out.labels[at] = tokens[at];
    if (random.random() < 0.8)
      tokens[at] = vocabulary_.mask;
    else if (random.random() >= 0.5)
      tokens[at] = random.integer(0, vocabulary_.size);
  });
  if (options_.permute) permute(tokens, limit, random, out);
}

void Masker::permute(std::span<std::int64_t> tokens, double limit, NumpyRandom& random, MaskedTokens& out) const {
  NumpyRandom lengths(options_.permute_seed);
  random.shuffle(std::span(out.order));
  out.moved.clear();
  for (const std::int32_t word : out.order) {
    const auto moved = static_cast<double>(out.moved.size());
    if (moved >= limit) break;
    const auto n = static_cast<std::int64_t>(lengths.choice(cumulative_)) + 1;
    const auto span = fitting_ngram(out, word, n, limit - moved);
    if (span.first == span.last || !is_free(out, span)) continue;
    for (std::int32_t i = span.first; i < span.last; ++i) {
      out.taken[static_cast<std::size_t>(i)] = 1;
      out.moved.push_back(out.positions[static_cast<std::size_t>(i)]);
    }
  }
  std::sort(out.moved.begin(), out.moved.end());
  out.values.clear();
  for (const std::int32_t at : out.moved) out.values.push_back(tokens[static_cast<std::size_t>(at)]);
  for (std::size_t k = 0; k < out.moved.size(); ++k) out.labels[static_cast<std::size_t>(out.moved[k])] = out.values[k];
  random.shuffle(std::span(out.values));
  for (std::size_t k = 0; k < out.moved.size(); ++k) tokens[static_cast<std::size_t>(out.moved[k])] = out.values[k];
}

void Masker::choose_spans(std::span<const std::int64_t> tokens, std::int64_t target, const MaskingRoom& room,
                          NumpyRandom& random, MaskedTokens& out) const {
  const double limit = start(tokens, target, random, out);
  hide_ngrams(limit, room, random, out, [&](std::size_t at) { out.labels[at] = tokens[at]; });
  std::sort(out.spans.begin(), out.spans.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
}

}  // namespace megatron::data
