#include "megatron/data/samples/packed_dataset.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/data/index/numpy_random.h"

namespace megatron::data {
namespace {

constexpr const char *kPieces = "piece_index.npy", *kBegins = "sample_index.npy";
constexpr std::int64_t kMaxPieces = std::int64_t{1} << 40;

/// Passes over the sequences, one after another, in the order in which the samples are read.
class Passes {
 public:
  Passes(const IndexedDataset& data, const SequenceRange& range, const GptIndexSpec& spec, Packing packing)
      : data_(data), spec_(spec), packing_(packing), random_(static_cast<std::uint32_t>(spec.seed)) {
    check_sequences(range);
    order_.resize(static_cast<std::size_t>(range.size()));
    std::iota(order_.begin(), order_.end(), static_cast<std::int32_t>(range.first));
  }

  /// Packs the next pass and shuffles its samples. Passes have as many samples and pieces as one another.
  void next() {
    random_.shuffle(std::span(order_));
    pass_ = pack(data_, order_, spec_.seq_length, packing_);
    samples_.resize(pass_.begins.size() - 1);
    std::iota(samples_.begin(), samples_.end(), std::int64_t{0});
    random_.shuffle(std::span(samples_));
  }

  std::int64_t samples() const { return static_cast<std::int64_t>(samples_.size()); }
  std::int64_t pieces() const { return static_cast<std::int64_t>(pass_.sequence.size()); }

  /// Writes the pass: two numbers a piece, and where each sample begins, counted from `piece`.
  void write(std::int64_t piece, std::span<std::int32_t> pieces, std::span<std::int64_t> begins) const {
    std::size_t at = 0;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      const auto sample = static_cast<std::size_t>(samples_[i]);
      begins[i] = piece + static_cast<std::int64_t>(at / 2);
      for (auto p = static_cast<std::size_t>(pass_.begins[sample]);
           p < static_cast<std::size_t>(pass_.begins[sample + 1]); ++p) {
        pieces[at++] = pass_.sequence[p];
        pieces[at++] = pass_.first[p];
      }
    }
  }

 private:
  const IndexedDataset& data_;
  const GptIndexSpec& spec_;
  const Packing packing_;
  NumpyRandom random_;
  std::vector<std::int32_t> order_;
  std::vector<std::int64_t> samples_;
  PackedPass pass_;
};

}  // namespace

PackedDataset::PackedDataset(const GptDatasetSpec& spec, Packing packing, const WaitMessage& say)
    : spec_(spec),
      data_(spec.prefix),
      range_(split_ranges(spec.split, data_.size())[static_cast<std::size_t>(spec.part)]) {
  check_split(spec.part, spec.split, range_, spec.index, data_);
  plan_gpt_index(spec.index, 0 < spec.index.num_samples.value_or(0) ? 1 : 0);  // checks the numbers
  const char* const kind = packing == Packing::BestFit ? "PackedDataset" : "DocumentDataset";
  const CacheEntry entry = cache_entry(spec, data_, kind);
  build_once(
      entry, {kPieces, kBegins}, [&] { build(entry, packing); }, say);
  pieces_.emplace(entry.file(kPieces));
  begins_.emplace(entry.file(kBegins));
  if (pieces_->shape().size() != 2 || pieces_->shape()[1] != 2 || begins_->shape().size() != 1 || begins_->size() < 1)
    throw ConfigError(rule_got_fix(concat(entry.file(kPieces), ": must have two columns."), "another shape",
                                   "remove the files; they are built again"));
}

void PackedDataset::build(const CacheEntry& entry, Packing packing) const {
  Passes passes(data_, range_, spec_.index, packing);
  passes.next();
  const std::int64_t wanted = spec_.index.num_samples.value_or(0);
  if (wanted > 0 && passes.samples() == 0)
    throw ConfigError(rule_got_fix(concat(spec_.prefix, ": documents that samples are made of must have two tokens."),
                                   concat(wanted, " samples of none"),
                                   "another part of the documents (--split), or longer ones"));
  const std::int64_t repeats = wanted == 0 ? 1 : (wanted + passes.samples() - 1) / passes.samples();
  std::int64_t pieces = 0;
  if (__builtin_mul_overflow(repeats, passes.pieces(), &pieces) || pieces > kMaxPieces)
    throw ConfigError(rule_got_fix("the samples asked for must not repeat the data so often.",
                                   concat(repeats, " passes of ", passes.pieces(), " pieces"),
                                   "fewer samples (--train-iters), or more text"));
  NpyWriter piece_index(entry.file(kPieces), NpyType::I32, {pieces, 2});
  NpyWriter begins(entry.file(kBegins), NpyType::I64, {repeats * passes.samples() + 1});
  const auto values = piece_index.values<std::int32_t>();
  const auto places = begins.values<std::int64_t>();
  for (std::int64_t pass = 0; pass < repeats; ++pass) {
    if (pass > 0) passes.next();
    const std::int64_t piece = pass * passes.pieces(), sample = pass * passes.samples();
    passes.write(piece, values.subspan(static_cast<std::size_t>(2 * piece)),
                 places.subspan(static_cast<std::size_t>(sample)));
  }
  places.back() = pieces;
  piece_index.publish();
  begins.publish();
}

std::vector<SequenceSlice> PackedDataset::pieces_of(std::int64_t i) const {
  if (i < 0 || i >= size()) throw std::out_of_range(concat("sample ", i, " of ", size()));
  const auto damaged = [this](const std::string& place, const std::string& got) {
    data_.check_whole();
    throw ConfigError(
        rule_got_fix(concat(place, ": a piece must lie within the data."), got, "remove the file; it is built again"));
  };
  const std::int64_t begin = (*begins_)[i], end = (*begins_)[i + 1];
  if (begin < 0 || end < begin || end > pieces_->shape()[0] || end - begin > seq_length())
    damaged(begins_->place_of(i), concat("pieces ", begin, " to ", end));
  std::vector<SequenceSlice> pieces;
  std::int64_t left = seq_length();
  for (std::int64_t p = begin; p < end; ++p) {
    const std::int64_t sequence = (*pieces_)[2 * p], first = (*pieces_)[2 * p + 1];
    if (sequence < range_.first || sequence >= range_.last)
      damaged(pieces_->place_of(2 * p), concat("sequence ", sequence));
    const SequenceSlice piece = piece_at(sequence, first, data_.length(sequence), seq_length());
    if (first < 0 || piece.size < 1 || piece.size > left)
      damaged(pieces_->place_of(2 * p), concat("place ", first, " of sequence ", sequence));
    left -= piece.size;
    pieces.push_back(piece);
  }
  return pieces;
}

void PackedDataset::get(std::int64_t i, const Sample& out) const {
  check_spans(out, seq_length());
  std::vector<std::int64_t> text;
  const auto put = [](const auto& span, std::size_t k, auto value) {
    if (!span.empty()) span[k] = value;
  };
  const auto id_of = [](std::int64_t stored) { return stored < 0 ? ~stored : stored; };
  std::size_t at = 0;
  for (const SequenceSlice& piece : pieces_of(i)) {
    text.resize(static_cast<std::size_t>(piece.size) + 1);
    data_.read(piece.sequence, piece.first, text);
    const std::size_t begin = at;
    for (std::size_t k = 0; k + 1 < text.size(); ++k, ++at) {
      put(out.tokens, at, id_of(text[k]));
      put(out.labels, at, id_of(text[k + 1]));
      put(out.loss_mask, at, text[k + 1] < 0 ? 0.0f : 1.0f);
      put(out.position_ids, at, static_cast<std::int64_t>(k));
      put(out.first_key, at, static_cast<std::int32_t>(begin));
    }
  }
  const auto n = static_cast<std::size_t>(seq_length());
  for (const std::size_t begin = at; at < n; ++at) {
    put(out.tokens, at, std::int64_t{0});
    put(out.labels, at, std::int64_t{0});
    put(out.loss_mask, at, 0.0f);
    put(out.position_ids, at, static_cast<std::int64_t>(at - begin));
    put(out.first_key, at, static_cast<std::int32_t>(begin));
  }
}

std::string PackedDataset::name_of(std::int64_t i) const { return concat(spec_.prefix, ", sample ", i); }

}  // namespace megatron::data
