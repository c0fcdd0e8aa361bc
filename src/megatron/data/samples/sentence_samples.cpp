#include "megatron/data/samples/sentence_samples.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <ios>
#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

constexpr int kIndexVersion = 1;  // raised when the same description begins to mean another order
// A run ends with the sentence that reaches its target, or two later at its document's end, or with its second one.
constexpr std::int64_t kBeyondTarget = 4 * kMaxSentence;
constexpr const char* kSampleIndex = "sample_index.npy";

SentenceIndexSpec index_spec(const SentenceSource& source, const SentenceBounds& bounds) {
  SentenceIndexSpec spec{.max_tokens = bounds.max_tokens,
                         .min_sentences = bounds.min_sentences,
                         .short_probability = source.short_probability,
                         .seed = source.seed,
                         .num_samples = source.num_samples};
  check_sentence_index(spec);
  return spec;
}

DocumentRange documents_of(const SentenceSource& source, const IndexedDataset& data) {
  return split_documents(source.split, source.part, data);
}

/// Hash of everything in the .idx that the sentences of a sample follow from.
std::string shape_hash(const IndexedDataset& data) {
  const auto lengths = data.length_bytes();
  std::uint64_t hash = XXH3_64bits(lengths.data(), lengths.size());
  for (std::int64_t i = 0; i <= data.num_documents(); ++i) {
    const std::int64_t first = data.first_sequence(i);
    hash = XXH3_64bits_withSeed(&first, sizeof first, hash);
  }
  return concat(std::hex, hash);
}

CacheEntry entry_of(const SentenceSource& source, const SentenceBounds& bounds, const IndexedDataset& data) {
  const SentenceIndexSpec spec = index_spec(source, bounds);
  const DocumentRange range = documents_of(source, data);
  auto folder = std::filesystem::path(source.cache_folder);
  if (folder.empty()) folder = std::filesystem::path(source.prefix).parent_path() / "cache" / "sentence_indices";
  return {folder, concat("sentences-", split_part_name(source.part)),
          concat("version: ", kIndexVersion, "\npair: ", std::filesystem::path(source.prefix).filename().string(),
                 "\nlengths and documents (xxh3): ", shape_hash(data), "\npart: ", split_part_name(source.part),
                 "\nfirst document: ", range.first, "\nend document: ", range.last,
                 "\nsamples: ", spec.num_samples ? std::to_string(*spec.num_samples) : "one pass",
                 "\ntokens: ", spec.max_tokens, "\nsentences at least: ", spec.min_sentences,
                 "\nshorter: ", spec.short_probability, "\nseed: ", spec.seed, "\n")};
}

}  // namespace

DocumentRange split_documents(const std::string& split, SplitPart part, const IndexedDataset& data) {
  const SequenceRange range = split_ranges(split, data.num_documents())[static_cast<std::size_t>(part)];
  return {range.first, range.last};
}

std::string sentence_index_file(const SentenceSource& source, const SentenceBounds& bounds,
                                const IndexedDataset& data) {
  return entry_of(source, bounds, data).file(kSampleIndex);
}

void SentenceSamples::build(const SentenceSource& source, const SentenceBounds& bounds, const WaitMessage& say) {
  const IndexedDataset data(source.prefix);
  const CacheEntry entry = entry_of(source, bounds, data);
  const auto build = [&] {
    build_sentence_index(data, documents_of(source, data), index_spec(source, bounds), entry.file(kSampleIndex));
  };
  build_once(entry, {kSampleIndex}, build, say);
}

SentenceSamples::SentenceSamples(const SentenceSource& source, const SentenceBounds& bounds)
    : source_(source), bounds_(bounds), data_(source.prefix), index_(sentence_index_file(source, bounds, data_)) {
  const DocumentRange range = documents_of(source, data_);
  part_ = {data_.first_sequence(range.first), data_.first_sequence(range.last)};
  if (index_.shape().size() != 2 || index_.shape()[1] != 3)
    throw ConfigError(rule_got_fix(concat(index_.place_of(0), ": an index of sentences must have three columns."),
                                   concat(index_.size(), " numbers of another shape"),
                                   "remove the file; it is built again"));
}

SentenceRun SentenceSamples::run(std::int64_t i) const {
  if (i < 0 || i >= size()) throw std::out_of_range(concat("sample ", i, " of ", size()));
  const SentenceRun run{index_[3 * i], index_[3 * i + 1], index_[3 * i + 2]};
  const std::int64_t sentences = run.last - run.first, most = run.target + kBeyondTarget;
  if (run.first < part_.first || run.last > part_.last || sentences < bounds_.min_sentences || run.target < 2 ||
      run.target > bounds_.max_tokens || (sentences > 1 && tokens(run.first, run.last, most) > most)) {
    data_.check_whole();
    throw ConfigError(rule_got_fix(concat(index_.place_of(3 * i), ": a sample must be at least ", bounds_.min_sentences,
                                          " of the sentences [", part_.first, ", ", part_.last, "), aim at 2 to ",
                                          bounds_.max_tokens, " tokens and hold few more than it aims at."),
                                   concat("sentences ", run.first, " to ", run.last, ", ", run.target, " tokens"),
                                   "remove the file; it is built again"));
  }
  return run;
}

std::int64_t SentenceSamples::tokens(std::int64_t first, std::int64_t last, std::int64_t enough) const {
  std::int64_t tokens = 0;
  for (std::int64_t s = first; s < last && tokens <= enough; ++s) tokens += data_.length(s);
  return tokens;
}

void SentenceSamples::read(std::int64_t first, std::int64_t skip, std::int64_t vocab_size,
                           std::span<std::int64_t> out) const {
  for (std::int64_t s = first; !out.empty(); ++s) {
    const std::int64_t length = data_.length(s);
    if (skip >= length) {
      skip -= length;
      continue;
    }
    const auto piece = out.first(static_cast<std::size_t>(std::min<std::int64_t>(length - skip, std::ssize(out))));
    data_.read(s, skip, piece);
    for (const std::int64_t token : piece)
      if (token < 0 || token >= vocab_size)
        throw ConfigError(rule_got_fix(concat(prefix(), ": a token must be one of the vocabulary's ", vocab_size, "."),
                                       concat("token ", token, " in sequence ", s),
                                       "name the tokenizer with which the pair was made"));
    out = out.subspan(piece.size());
    skip = 0;
  }
}

std::uint32_t SentenceSamples::seed_of(std::int64_t i) const {
  return static_cast<std::uint32_t>(source_.seed + static_cast<std::uint64_t>(i));  // modulo 2^32
}

}  // namespace megatron::data
