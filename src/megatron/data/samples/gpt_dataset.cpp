#include "megatron/data/samples/gpt_dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"

namespace megatron::data {
namespace {

constexpr int kIndexVersion = 1;  // raised when the same description begins to mean another order

SequenceRange range_of(const GptDatasetSpec& spec, const IndexedDataset& data) {
  return split_ranges(spec.split, data.size())[static_cast<std::size_t>(spec.part)];
}

/// All that decides the index, as text: what the cache's names are a hash of.
std::string description_of(const GptDatasetSpec& spec, const IndexedDataset& data) {
  const auto lengths = data.length_bytes();
  const SequenceRange range = range_of(spec, data);
  const std::string hash = fmt::format("{:016x}", XXH3_64bits(lengths.data(), lengths.size()));
  return concat("version: ", kIndexVersion, "\npair: ", std::filesystem::path(spec.prefix).filename().string(),
                "\nsequences: ", data.size(), "\nlengths (xxh3): ", hash, "\npart: ", split_part_name(spec.part),
                "\nfirst sequence: ", range.first, "\nend sequence: ", range.last,
                "\nsamples: ", spec.index.num_samples ? std::to_string(*spec.index.num_samples) : "one pass",
                "\nsequence length: ", spec.index.seq_length, "\nseed: ", spec.index.seed,
                "\nextra token: ", spec.index.extra_token, "\nkeep partial: ", spec.index.keep_partial, "\n");
}

constexpr const char *kKind = "GPTDataset", *kDocumentIndex = "document_index.npy", *kSampleIndex = "sample_index.npy",
                     *kShuffleIndex = "shuffle_index.npy";

GptIndexFiles files_of(const CacheEntry& entry) {
  return {entry.file(kDocumentIndex), entry.file(kSampleIndex), entry.file(kShuffleIndex)};
}

}  // namespace

CacheEntry cache_entry(const GptDatasetSpec& spec, const IndexedDataset& data, const std::string& kind) {
  auto folder = std::filesystem::path(spec.cache_folder);
  if (folder.empty()) folder = std::filesystem::path(spec.prefix).parent_path() / "cache" / (kind + "_indices");
  return {folder, concat(kind, "-", split_part_name(spec.part)), description_of(spec, data)};
}

GptIndexFiles gpt_index_files(const GptDatasetSpec& spec, const IndexedDataset& data) {
  return files_of(cache_entry(spec, data, kKind));
}

void GptDataset::build(const GptDatasetSpec& spec, const WaitMessage& say) {
  const IndexedDataset data(spec.prefix);
  const SequenceRange range = range_of(spec, data);
  check_split(spec.part, spec.split, range, spec.index, data);
  const CacheEntry entry = cache_entry(spec, data, kKind);
  build_once(
      entry, {kDocumentIndex, kSampleIndex, kShuffleIndex},
      [&] { build_gpt_index(data, range, spec.index, files_of(entry)); }, say);
}

GptDataset::GptDataset(const GptDatasetSpec& spec, const GptSampleOptions& options)
    : GptDataset(spec, options, IndexedDataset(spec.prefix)) {}

GptDataset::GptDataset(const GptDatasetSpec& spec, const GptSampleOptions& options, IndexedDataset data)
    : spec_(spec),
      options_(options),
      data_(std::move(data)),
      range_(range_of(spec, data_)),
      index_(gpt_index_files(spec, data_)) {
  check_split(spec_.part, spec_.split, range_, spec_.index, data_);
  if ((options.reset_position_ids || options.reset_attention_mask || options.eod_mask_loss) && options.eod < 0)
    throw ConfigError(rule_got_fix(
        "reset_position_ids, reset_attention_mask and eod_mask_loss need an end-of-document token.", "none",
        "leave --reset-position-ids and --reset-attention-mask and --eod-mask-loss out, or name a tokenizer that has "
        "one"));
}

std::vector<GptDataset::SequenceSlice> GptDataset::pieces_of(std::int64_t i) const {
  if (i < 0 || i >= size()) throw std::out_of_range(concat("sample ", i, " of ", size()));
  const auto damaged = [this](const std::string& place, const std::string& got) {
    data_.check_whole();
    throw ConfigError(
        rule_got_fix(concat(place, ": a sample must lie within the data."), got, "remove the file; it is built again"));
  };
  const std::int64_t sample = index_.shuffle[i], extra = spec_.index.extra_token ? 1 : 0;
  if (sample < 0 || sample >= size()) damaged(index_.shuffle.place_of(i), concat("sample ", sample, " of ", size()));
  const std::int64_t begin = index_.sample[2 * sample], begin_token = index_.sample[2 * sample + 1];
  const std::int64_t end = index_.sample[2 * sample + 2], end_token = index_.sample[2 * sample + 3];
  if (begin < 0 || begin > end || end >= index_.document.size())
    damaged(index_.sample.place_of(2 * sample),
            concat("positions ", begin, " to ", end, " of ", index_.document.size()));
  std::vector<SequenceSlice> pieces;
  std::int64_t left = seq_length() + extra;
  for (std::int64_t k = begin; k <= end; ++k) {
    const std::int64_t sequence = index_.document[k];
    if (sequence < range_.first || sequence >= range_.last)
      damaged(index_.document.place_of(k),
              concat("sequence ", sequence, " outside [", range_.first, ", ", range_.last, ")"));
    const std::int64_t length = data_.length(sequence), first = k == begin ? begin_token : 0;
    const std::int64_t last = k == end ? end_token + extra : length;
    if (first < 0 || last < first || last > length || last - first > left)
      damaged(index_.sample.place_of(2 * sample), concat("tokens ", first, " to ", last, " of ", length));
    left -= last - first;
    pieces.push_back({sequence, first, last - first});
  }
  if (left > 0 && !(spec_.index.keep_partial && sample == size() - 1))
    damaged(index_.sample.place_of(2 * sample), concat(left, " tokens too few"));
  return pieces;
}

void GptDataset::read_tokens(std::int64_t i, std::span<std::int64_t> out) const {
  std::size_t at = 0;
  for (const SequenceSlice& piece : pieces_of(i)) {
    data_.read(piece.sequence, piece.first, out.subspan(at, static_cast<std::size_t>(piece.size)));
    at += static_cast<std::size_t>(piece.size);
  }
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(at), out.end(), options_.pad);
  if (options_.transform) options_.transform(i, out);
}

SampleFields GptDataset::fields() const {
  return {.loss_mask = options_.eod_mask_loss || options_.pad >= 0 || spec_.index.keep_partial,
          .position_ids = options_.reset_position_ids,
          .first_key = options_.reset_attention_mask};
}

std::string GptDataset::name_of(std::int64_t i) const { return concat(spec_.prefix, ", sample ", i); }

void GptDataset::get(std::int64_t i, const Sample& out) const {
  check_spans(out, seq_length());
  const auto n = static_cast<std::size_t>(seq_length());
  std::vector<std::int64_t> text(n + 1, options_.pad);
  read_tokens(i, std::span(text).first(n + (spec_.index.extra_token ? 1 : 0)));
  // Padding may be no token at all (-1): what the model sees instead is token 0, and its loss is masked.
  const auto shown = [pad = options_.pad](std::int64_t token) { return token == pad ? 0 : token; };
  std::int64_t document_begin = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const bool ends_document = options_.eod >= 0 && text[k] == options_.eod;
    const bool counts = text[k + 1] != options_.pad && !(options_.eod_mask_loss && ends_document);
    if (!out.tokens.empty()) out.tokens[k] = shown(text[k]);
    if (!out.labels.empty()) out.labels[k] = shown(text[k + 1]);
    if (!out.loss_mask.empty()) out.loss_mask[k] = counts ? 1.0f : 0.0f;
    if (!out.position_ids.empty())
      out.position_ids[k] = static_cast<std::int64_t>(k) - (options_.reset_position_ids ? document_begin : 0);
    if (!out.first_key.empty())
      out.first_key[k] = static_cast<std::int32_t>(options_.reset_attention_mask ? document_begin : 0);
    if (ends_document) document_begin = static_cast<std::int64_t>(k) + 1;
  }
}

std::vector<std::int64_t> GptDataset::sequences_of(std::int64_t i) const {
  std::vector<std::int64_t> sequences;
  for (const SequenceSlice& piece : pieces_of(i)) sequences.push_back(piece.sequence);
  return sequences;
}

}  // namespace megatron::data
