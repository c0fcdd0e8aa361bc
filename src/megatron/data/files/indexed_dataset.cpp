#include "megatron/data/files/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read and written as they lie in memory");

constexpr std::array<char, 9> kMagic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr std::int64_t kVersionAt = 9, kDTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26, kArraysAt = 34;

template <class T>
T load(std::span<const std::byte> bytes, std::int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void widen(const std::byte* from, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    out[i] = value;  // NOLINT(bugprone-signed-char-misuse): Megatron's int8 is a number
  }
}

template <class T>
void narrow(std::span<const std::int32_t> tokens, std::vector<std::byte>& out) {
  std::int32_t least = 0, most = 0;
  for (const std::int32_t token : tokens) {
    least = std::min(least, token);
    most = std::max(most, token);
  }
  if (!std::in_range<T>(least) || !std::in_range<T>(most))
    throw std::runtime_error(
        concat("token id ", std::in_range<T>(least) ? most : least, " does not fit the type of the .bin file"));
  out.resize(tokens.size() * sizeof(T));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const T value = static_cast<T>(tokens[i]);
    std::memcpy(out.data() + i * sizeof value, &value, sizeof value);
  }
}

}  // namespace

std::size_t item_size(DType dtype) {
  switch (dtype) {
    case DType::U8:
    case DType::I8:
      return 1;
    case DType::I16:
    case DType::U16:
      return 2;
    case DType::I32:
    case DType::F32:
      return 4;
    case DType::I64:
    case DType::F64:
      return 8;
  }
  throw std::logic_error("unknown DType");
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::U8:
      return "uint8";
    case DType::I8:
      return "int8";
    case DType::I16:
      return "int16";
    case DType::I32:
      return "int32";
    case DType::I64:
      return "int64";
    case DType::F64:
      return "float64";
    case DType::F32:
      return "float32";
    case DType::U16:
      return "uint16";
  }
  throw std::logic_error("unknown DType");
}

DType dtype_for_vocabulary(std::int64_t vocab_size) { return vocab_size < 65500 ? DType::U16 : DType::I32; }

namespace {

/// A pair is named by what its two files have in common: one of the files named instead is told apart from none.
const std::string& checked_prefix(const std::string& prefix) {
  if (prefix.empty() || (std::filesystem::is_directory(prefix) && !std::filesystem::exists(prefix + ".idx")))
    throw ConfigError(rule_got_fix("a .bin/.idx pair is named by its prefix, without the ending.",
                                   prefix.empty() ? "nothing" : concat(prefix, ", a folder"),
                                   "name a pair, such as my_text_document for my_text_document.bin and .idx"));
  const std::string pair = prefix.substr(0, std::max<std::size_t>(prefix.size(), 4) - 4);
  const bool is_file = prefix.ends_with(".bin") || prefix.ends_with(".idx");
  if (is_file && !std::filesystem::exists(prefix + ".idx") && std::filesystem::exists(pair + ".idx"))
    throw ConfigError(
        rule_got_fix("a .bin/.idx pair is named by its prefix, without the ending.", prefix, concat("name ", pair)));
  double weight = 0;
  const auto [rest, error] = std::from_chars(prefix.data(), prefix.data() + prefix.size(), weight);
  if (!std::filesystem::exists(prefix + ".idx") && error == std::errc() && rest == prefix.data() + prefix.size())
    throw ConfigError(rule_got_fix("a blend is either prefixes alone or a weight before each prefix.",
                                   concat(prefix, " where a prefix stands, and no ", prefix, ".idx"),
                                   "name each prefix after its weight: 0.3 A_text_document 0.7 B_text_document"));
  if (!std::filesystem::exists(prefix + ".idx"))
    throw ConfigError(rule_got_fix(
        concat("There must be a pair ", prefix, ".bin and .idx."),
        std::filesystem::exists(prefix) ? concat(prefix, " is a file of another kind") : concat("no ", prefix, ".idx"),
        "name a pair by its prefix; megatron data preprocess --input FILE --tokenizer "
        "FOLDER --output-prefix PREFIX makes one of a text"));
  return prefix;
}

}  // namespace

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(checked_prefix(prefix)), idx_file_(prefix + ".idx"), bin_file_(prefix + ".bin") {
  idx_ = idx_file_->bytes();
  bin_ = bin_file_->bytes();
  parse();
}

IndexedDataset::IndexedDataset(std::span<const std::byte> idx, std::span<const std::byte> bin, const std::string& name)
    : prefix_(name), idx_(idx), bin_(bin) {
  parse();
}

void IndexedDataset::damaged(std::int64_t offset, const std::string& rule, const std::string& got) const {
  check_whole();
  throw ConfigError(
      rule_got_fix(concat(prefix_, ".idx, byte ", offset, ": ", rule), got, "make the pair again from its text"));
}

void IndexedDataset::check_whole() const {
  for (const auto* const file : {&idx_file_, &bin_file_})
    if (*file) (*file)->check_whole();
}

void IndexedDataset::parse() {
  const auto size = static_cast<std::int64_t>(idx_.size());
  if (size < kArraysAt) damaged(0, "the header has 34 bytes.", concat(size, " bytes in the file"));
  if (std::memcmp(idx_.data(), kMagic.data(), kMagic.size()) != 0)
    damaged(0, "an index begins with \"MMIDIDX\".", "other bytes");
  if (const auto version = load<std::uint64_t>(idx_, kVersionAt); version != 1)
    damaged(kVersionAt, "the version must be 1.", concat("version ", version));
  const auto code = load<std::uint8_t>(idx_, kDTypeAt);
  if (code < 1 || code > 8) damaged(kDTypeAt, "the dtype code must be 1 to 8.", concat("code ", int{code}));
  dtype_ = static_cast<DType>(code);
  const auto sequences = load<std::uint64_t>(idx_, kSequencesAt), documents = load<std::uint64_t>(idx_, kDocumentsAt);
  // Bounding the counts by the file size first keeps the sum below from overflowing.
  if (sequences > static_cast<std::uint64_t>(size) / 12)
    damaged(kSequencesAt, "the sequences must fit the file.", concat(sequences, " sequences in ", size, " bytes"));
  if (documents < 1 || documents > static_cast<std::uint64_t>(size) / 8)
    damaged(kDocumentsAt, "there must be at least 1 document boundary, and all must fit the file.",
            concat(documents, " boundaries in ", size, " bytes"));
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(documents);
  const std::int64_t expected = kArraysAt + 12 * sequences_ + 8 * documents_;
  has_modes_ = sequences_ > 0 && size == expected + sequences_;
  if (size != expected && !has_modes_)
    damaged(kSequencesAt, "the counts must account for the whole file.",
            concat(sequences_, " sequences and ", documents_, " document boundaries need ", expected, " bytes (or ",
                   expected + sequences_, " with modes); the file has ", size));
  if (first_sequence(0) != 0 || first_sequence(documents_ - 1) != sequences_)
    damaged(kArraysAt + 12 * sequences_, "document boundaries must run from 0 to the number of sequences.",
            concat(first_sequence(0), " to ", first_sequence(documents_ - 1), " with ", sequences_, " sequences"));
}

void IndexedDataset::check_sequence(std::int64_t sequence) const {
  if (sequence < 0 || sequence >= sequences_)
    throw ConfigError(rule_got_fix(concat(prefix_, ": a sequence must be one of ", sequences_, "."),
                                   concat("sequence ", sequence), concat("0 to ", sequences_ - 1)));
}

std::int64_t IndexedDataset::length(std::int64_t sequence) const {
  check_sequence(sequence);
  const auto length = load<std::int32_t>(idx_, kArraysAt + 4 * sequence);
  if (length < 0)
    damaged(kArraysAt + 4 * sequence, "a length cannot be negative.", concat(length, " (sequence ", sequence, ")"));
  return length;
}

std::span<const std::byte> IndexedDataset::length_bytes() const {
  return idx_.subspan(kArraysAt, static_cast<std::size_t>(4 * sequences_));
}

std::int64_t IndexedDataset::first_sequence(std::int64_t i) const {
  if (i < 0 || i >= documents_) throw std::logic_error(concat("document boundary ", i, " of ", documents_));
  const std::int64_t at = kArraysAt + 12 * sequences_ + 8 * i;
  const auto first = load<std::int64_t>(idx_, at);
  if (first < 0 || first > sequences_)
    damaged(at, "a document must begin within the sequences.",
            concat(first, " of ", sequences_, " (document ", i, ")"));
  return first;
}

std::int8_t IndexedDataset::mode(std::int64_t sequence) const {
  check_sequence(sequence);
  if (!has_modes_) throw std::logic_error(prefix_ + " has no modes");
  return load<std::int8_t>(idx_, kArraysAt + 12 * sequences_ + 8 * documents_ + sequence);
}

std::span<const std::byte> IndexedDataset::raw(std::int64_t sequence) const {
  const std::int64_t bytes = length(sequence) * static_cast<std::int64_t>(item_size(dtype_));
  const std::int64_t at = kArraysAt + 4 * sequences_ + 8 * sequence;
  const auto pointer = load<std::int64_t>(idx_, at);
  if (pointer < 0 || pointer > bin_bytes() || bytes > bin_bytes() - pointer)
    damaged(
        at, "a sequence must lie within the .bin file.",
        concat("sequence ", sequence, " at ", pointer, " with ", bytes, " bytes; ", prefix_, ".bin has ", bin_bytes()));
  return bin_.subspan(static_cast<std::size_t>(pointer), static_cast<std::size_t>(bytes));
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t first, std::span<std::int64_t> out) const {
  const auto bytes = raw(sequence);
  const std::size_t item = item_size(dtype_), tokens = bytes.size() / item;
  if (first < 0 || static_cast<std::uint64_t>(first) > tokens || out.size() > tokens - static_cast<std::size_t>(first))
    throw ConfigError(
        rule_got_fix(concat(prefix_, ": a piece must lie within its sequence."),
                     concat("tokens ", first, " + ", out.size(), " of sequence ", sequence, ", which has ", tokens)));
  const std::byte* from = bytes.data() + static_cast<std::size_t>(first) * item;
  if (!visit_integer(dtype_, [&](auto token) { widen<decltype(token)>(from, out); }))
    damaged(kDTypeAt, "tokens must be integers.", dtype_name(dtype_));
}

std::int64_t IndexedDataset::verify() const {
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) tokens += static_cast<std::int64_t>(raw(i).size() / item_size(dtype_));
  if (tokens > bin_bytes() / static_cast<std::int64_t>(item_size(dtype_)))
    damaged(
        kArraysAt + 4 * sequences_, "sequences must not overlap.",
        concat(tokens, " tokens of ", item_size(dtype_), " bytes in the ", bin_bytes(), " bytes of ", prefix_, ".bin"));
  for (std::int64_t i = 1; i < documents_; ++i)
    if (first_sequence(i) < first_sequence(i - 1))
      damaged(kArraysAt + 12 * sequences_ + 8 * i, "documents must follow one another.",
              concat("document ", i, " begins at ", first_sequence(i), ", the one before at ", first_sequence(i - 1)));
  return tokens;
}

void narrow_tokens(DType dtype, std::span<const std::int32_t> tokens, std::vector<std::byte>& out) {
  if (!visit_integer(dtype, [&](auto token) { narrow<decltype(token)>(tokens, out); }))
    throw std::logic_error("tokens are written as integers");
}

void write_index(AtomicFile& idx, DType dtype, std::span<const std::byte> lengths,
                 std::span<const std::byte> document_ends, std::span<const std::byte> modes) {
  const std::size_t sequences = lengths.size() / sizeof(std::int32_t);
  idx.write(std::as_bytes(std::span(kMagic)));
  idx.write_value(std::uint64_t{1});
  idx.write_value(static_cast<std::uint8_t>(dtype));
  idx.write_value(static_cast<std::uint64_t>(sequences));
  idx.write_value(static_cast<std::uint64_t>(document_ends.size() / sizeof(std::int64_t) + 1));
  idx.write(lengths);
  std::int64_t pointer = 0;
  for (std::size_t i = 0; i < sequences; ++i) {
    idx.write_value(pointer);
    pointer +=
        load<std::int32_t>(lengths, static_cast<std::int64_t>(4 * i)) * static_cast<std::int64_t>(item_size(dtype));
  }
  idx.write_value(std::int64_t{0});
  idx.write(document_ends);
  idx.write(modes);
  idx.flush();  // a full disk shows now, not when the .bin file has its name
}

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, DType dtype)
    : prefix_(prefix),
      dtype_(dtype),
      bin_(prefix + ".bin"),
      lengths_(prefix + ".idx.lengths"),
      document_ends_(prefix + ".idx.documents"),
      modes_(prefix + ".idx.modes") {}

void IndexedDatasetWriter::add_sequences(std::span<const std::int32_t> lengths, std::span<const std::int8_t> modes) {
  const bool with_modes = sequences_ == 0 ? !modes.empty() : modes_.size() > 0;
  if (modes.size() != (with_modes ? lengths.size() : 0))
    throw std::logic_error("modes must be given for every sequence or for none");
  lengths_.write(std::as_bytes(lengths));
  modes_.write(std::as_bytes(modes));
  sequences_ += static_cast<std::int64_t>(lengths.size());
}

void IndexedDatasetWriter::add_document(std::span<const std::int32_t> tokens, std::span<const std::int32_t> lengths,
                                        std::span<const std::int8_t> modes) {
  std::int64_t total = 0;
  for (const std::int32_t length : lengths) total += length;
  if (total != static_cast<std::int64_t>(tokens.size()))
    throw std::logic_error(concat("a document of ", tokens.size(), " tokens with lengths that sum to ", total));
  narrow_tokens(dtype_, tokens, narrowed_);
  bin_.write(narrowed_);
  add_sequences(lengths, modes);
  document_ends_.write_value(sequences_);
  ++documents_;
}

void IndexedDatasetWriter::add_documents(const IndexedDataset& from, std::int64_t first, std::int64_t end) {
  if (from.dtype() != dtype_)
    throw ConfigError(
        rule_got_fix("datasets that are merged must have one dtype.",
                     concat(from.prefix(), " has ", dtype_name(from.dtype()), ", the first ", dtype_name(dtype_)),
                     "preprocess both with the same tokenizer"));
  if (sequences_ > 0 && from.size() > 0 && from.has_modes() != (modes_.size() > 0))
    throw ConfigError(rule_got_fix("datasets that are merged must all have modes or none.",
                                   from.prefix() + (from.has_modes() ? " has modes" : " has none"),
                                   "preprocess both alike"));
  for (std::int64_t document = first; document < end; ++document) {
    const std::int64_t next = from.first_sequence(document + 1);
    if (next < from.first_sequence(document))
      throw ConfigError(rule_got_fix(from.prefix() + ".idx: documents must follow one another.",
                                     concat("document ", document, " ends before it begins"),
                                     "make the pair again from its text"));
    for (std::int64_t i = from.first_sequence(document); i < next; ++i) {
      bin_.write(from.raw(i));
      const auto length = static_cast<std::int32_t>(from.length(i));
      const std::int8_t mode = from.has_modes() ? from.mode(i) : std::int8_t{0};
      add_sequences({&length, 1}, {&mode, from.has_modes() ? std::size_t{1} : std::size_t{0}});
    }
    document_ends_.write_value(sequences_);
    ++documents_;
  }
}

void IndexedDatasetWriter::publish() {
  AtomicFile idx(prefix_ + ".idx");
  for (AtomicFile* part : {&lengths_, &document_ends_, &modes_}) part->flush();
  const MappedFile lengths(lengths_.temporary_path()), ends(document_ends_.temporary_path()),
      modes(modes_.temporary_path());
  write_index(idx, dtype_, lengths.bytes(), ends.bytes(), modes.bytes());
  std::filesystem::remove(prefix_ + ".idx");
  bin_.commit();
  idx.commit();
}

}  // namespace megatron::data
