#include "megatron/data/index/sentence_index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/data/files/npy.h"
#include "megatron/data/index/gpt_index.h"
#include "megatron/data/index/index_room.h"
#include "megatron/data/index/mersenne_twister.h"
#include "megatron/data/index/split.h"

namespace megatron::data {
namespace {

constexpr std::int64_t kMaxSentenceSamples = std::int64_t{1} << 48;
constexpr std::int64_t kSentenceRowBytes = 12;
constexpr std::int64_t kToldEvery = std::int64_t{1} << 16;  // samples

/// Counts the samples of a pass, and tells of them.
class SamplePass {
 public:
  SamplePass(const IndexProgress& progress, const char* name, std::int64_t total)
      : progress_(progress), name_(name), total_(total) {}

  void add(std::int64_t samples) {
    done_ += samples;
    if (done_ >= told_ + kToldEvery) tell();
  }
  /// Whole passes over the data may give more than were asked for.
  void tell() {
    told_ = done_;
    if (progress_) progress_(name_, total_ > 0 ? std::min(done_, total_) : done_, total_);
  }

 private:
  const IndexProgress& progress_;
  const char* name_;
  std::int64_t total_, done_ = 0, told_ = 0;
};

/// Reads the lengths of sentences, where they lie.
class SentenceLengths {
 public:
  explicit SentenceLengths(const IndexedDataset& data) : lengths_(data.length_bytes().data()) {}
  std::int64_t operator[](std::int64_t sentence) const {
    std::int32_t length;
    std::memcpy(&length, lengths_ + 4 * sentence, sizeof length);
    return length;
  }

 private:
  const std::byte* lengths_;
};

/// Whether samples are made of the document. Throws ConfigError for a damaged one.
bool is_usable(const IndexedDataset& data, const SentenceLengths& lengths, std::int64_t document,
               std::int64_t min_sentences) {
  const std::int64_t first = data.first_sequence(document), last = data.first_sequence(document + 1);
  if (last < first)
    throw ConfigError(rule_got_fix(concat(data.prefix(), ".idx: a document cannot end before it begins."),
                                   concat("document ", document, ": sentences ", first, " to ", last),
                                   "make the pair again from its text"));
  std::int64_t longest = 0, shortest = 0;
  for (std::int64_t s = first; s < last; ++s) {
    longest = std::max(longest, lengths[s]);
    shortest = std::min(shortest, lengths[s]);
  }
  if (shortest < 0)
    for (std::int64_t s = first; s < last; ++s) data.length(s);  // throws for the first that is negative
  return last - first >= min_sentences && (last - first == 1 || longest <= kMaxSentence);
}

/// The documents of a range that samples are made of.
class Documents {
 public:
  Documents(const IndexedDataset& data, const DocumentRange& range, std::int64_t min_sentences)
      : data_(data), lengths_(data), first_(range.first) {
    for (std::int64_t document = range.first; document < range.last; ++document)
      usable_.push_back(is_usable(data, lengths_, document, min_sentences) ? 1 : 0);
  }

  /// Calls `use(first, last)` with the sentences of each document that is used.
  template <class Use>
  void for_each(Use use) const {
    std::int64_t first = data_.first_sequence(first_);
    for (std::size_t i = 0; i < usable_.size(); ++i) {
      const std::int64_t last = data_.first_sequence(first_ + static_cast<std::int64_t>(i) + 1);
      if (usable_[i]) use(first, last);
      first = last;
    }
  }

  /// The constructor has seen that it is not negative.
  std::int64_t length(std::int64_t sentence) const { return lengths_[sentence]; }

 private:
  const IndexedDataset& data_;
  SentenceLengths lengths_;
  std::int64_t first_;
  std::vector<std::uint8_t> usable_;
};

/// Draws what each sample aims at.
class TargetLength {
 public:
  explicit TargetLength(const SentenceIndexSpec& spec)
      : random_(static_cast<std::uint32_t>(spec.seed)), max_tokens_(static_cast<std::uint32_t>(spec.max_tokens)) {
    if (spec.short_probability > 0) ratio_ = static_cast<std::uint32_t>(std::round(1.0 / spec.short_probability));
  }

  std::uint32_t operator()() {
    if (ratio_ == 0) return max_tokens_;
    const std::uint32_t word = random_();
    return word % ratio_ == 0 ? 2 + word % (max_tokens_ - 1) : max_tokens_;
  }

 private:
  MersenneTwister random_;
  std::uint32_t max_tokens_, ratio_ = 0;
};

/// Calls `emit(first sentence, end sentence, tokens aimed at)` for each sample before the shuffle; returns their
/// number.
template <class Emit>
std::int64_t for_each_sample(const Documents& documents, const SentenceIndexSpec& spec, Emit emit) {
  TargetLength draw(spec);
  std::int64_t samples = 0;
  for (std::int64_t pass = 0; spec.num_samples ? samples < *spec.num_samples : pass < spec.passes; ++pass) {
    const std::int64_t before = samples;
    documents.for_each([&](std::int64_t first, std::int64_t last) {
      std::int64_t begin = first, tokens = 0, target = draw();
      for (std::int64_t s = first; s < last; ++s) {
        tokens += documents.length(s);
        // One sentence alone is not left for the next sample.
        const std::int64_t left = last - s - 1;
        const bool full = tokens >= target && left > 1 && s + 1 - begin >= spec.min_sentences;
        if (!full && left > 0) continue;
        emit(begin, s + 1, target);
        ++samples;
        begin = s + 1;
        tokens = 0;
        target = draw();  // also after a document's last sample, where nothing uses it
      }
    });
    if (samples == before) break;
  }
  return samples;
}

void check_samples(std::int64_t samples, const IndexedDataset& data, const DocumentRange& range,
                   const SentenceIndexSpec& spec) {
  if (samples > 0 || spec.num_samples.value_or(0) == 0) return;
  throw EmptyPart(rule_got_fix(
      concat("samples need documents of at least ", spec.min_sentences, " sentences, none longer than ", kMaxSentence,
             " tokens."),
      concat("none among documents ", range.first, " to ", range.last, " of ", data.prefix(), ", which has ",
             data.num_documents(), " documents of ", data.size(), " sequences; ", *spec.num_samples, " samples asked"),
      "preprocess with --split-sentences, use more documents, or give this part of the split a larger share"));
}

/// Fisher-Yates over rows of three, as build_mapping does it. Places are drawn ahead of the swaps, whose memory is then
/// on its way.
void shuffle_rows(std::span<std::uint32_t> rows, std::uint64_t seed, SamplePass& pass) {
  std::mt19937_64 random(seed);
  std::array<std::size_t, 64> places;
  for (std::size_t left = rows.size() / 3; left > 1;) {
    const std::size_t count = std::min(places.size(), left - 1);
    for (std::size_t k = 0; k < count; ++k) {
      places[k] = 3 * (random() % (left - k));
      __builtin_prefetch(&rows[places[k]], 1);
    }
    for (std::size_t k = 0; k < count; ++k, --left)
      std::swap_ranges(&rows[3 * (left - 1)], &rows[3 * (left - 1)] + 3, &rows[places[k]]);
    pass.add(static_cast<std::int64_t>(count));
  }
}

}  // namespace

void check_sentence_index(const SentenceIndexSpec& spec) {
  if (spec.max_tokens < 2 || spec.max_tokens > kMaxSample)
    throw ConfigError(rule_got_fix(
        concat("samples of sentences must have 2 to ", kMaxSample, " tokens of text, without those that frame it."),
        concat(spec.max_tokens), "set the sequence length accordingly"));
  if (!(spec.short_probability == 0 || (spec.short_probability >= 1e-9 && spec.short_probability <= 1)))
    throw ConfigError(rule_got_fix("the share of shorter samples must be 0, or 1e-9 to 1.",
                                   concat(spec.short_probability), "--short-seq-prob 0.1 (the default)"));
  if (spec.seed >= std::numeric_limits<std::int32_t>::max())
    throw ConfigError(
        rule_got_fix("the seed of samples of sentences must be below 2^31 - 1.", concat(spec.seed), "--seed 1234"));
  if (spec.num_samples.value_or(0) < 0)
    throw ConfigError(
        rule_got_fix("the number of samples cannot be negative.", concat(*spec.num_samples), "0 or more"));
  if (spec.num_samples.value_or(0) > kMaxSentenceSamples)
    throw ConfigError(rule_got_fix("the number of samples must be at most 2^48.", concat(*spec.num_samples),
                                   "ask for fewer samples"));
}

void check_sentence_range(const IndexedDataset& data, const DocumentRange& range, const SentenceIndexSpec& spec) {
  const SentenceLengths lengths(data);
  for (std::int64_t document = range.first; document < range.last; ++document)
    if (is_usable(data, lengths, document, spec.min_sentences)) return;
  check_samples(0, data, range, spec);
}

std::int64_t build_sentence_index(const IndexedDataset& data, const DocumentRange& range, const SentenceIndexSpec& spec,
                                  const std::string& file, const IndexProgress& progress) {
  check_sentence_index(spec);
  if (data.size() > std::numeric_limits<std::uint32_t>::max())
    throw ConfigError(rule_got_fix("a dataset of sentences may have at most 2^32 - 1 of them.", concat(data.size()),
                                   "split it into several pairs"));
  const std::int64_t wanted = spec.num_samples.value_or(0);
  check_room(file, concat(wanted, " samples"), static_cast<double>(wanted) * kSentenceRowBytes);
  const Documents documents(data, range, spec.min_sentences);
  SamplePass counting(progress, "count", wanted);
  const std::int64_t samples = for_each_sample(documents, spec, [&](auto...) { counting.add(1); });
  counting.tell();
  check_samples(samples, data, range, spec);
  NpyWriter index(file, NpyType::U32, {samples, 3});
  const auto rows = index.values<std::uint32_t>();
  std::size_t at = 0;
  SamplePass writing(progress, "write", samples), shuffling(progress, "shuffle", samples);
  for_each_sample(documents, spec, [&](auto... values) {
    ((rows[at++] = static_cast<std::uint32_t>(values)), ...);
    writing.add(1);
  });
  writing.tell();
  shuffle_rows(rows, spec.seed + 1, shuffling);
  shuffling.add(std::min<std::int64_t>(samples, 1));  // the last stays where it is
  shuffling.tell();
  index.publish();
  return samples;
}

}  // namespace megatron::data
