#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/files/file.h"

// Megatron's PREFIX.bin (tokens back to back) and PREFIX.idx: magic "MMIDIDX\0\0", u64 version 1, u8 dtype code,
// u64 sequences, u64 documents + 1; then from byte 34, without padding, i32 lengths, i64 byte offsets into .bin, i64
// first sequence of each document (0 … number of sequences), and, for multimodal data, i8 modes. All little-endian.
namespace megatron::data {

/// Type codes of the .idx header.
enum class DType : std::uint8_t { U8 = 1, I8 = 2, I16 = 3, I32 = 4, I64 = 5, F64 = 6, F32 = 7, U16 = 8 };

std::size_t item_size(DType dtype);
const char* dtype_name(DType dtype);
/// Calls `visit` with a value of the type that `dtype` stands for; false, without a call, where that is no integer.
template <class Visit>
bool visit_integer(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::U8:
      return visit(std::uint8_t{}), true;
    case DType::I8:
      return visit(std::int8_t{}), true;
    case DType::I16:
      return visit(std::int16_t{}), true;
    case DType::U16:
      return visit(std::uint16_t{}), true;
    case DType::I32:
      return visit(std::int32_t{}), true;
    case DType::I64:
      return visit(std::int64_t{}), true;
    case DType::F64:
    case DType::F32:
      break;
  }
  return false;
}
/// What Megatron's preprocessing picks: uint16 below 65500 tokens, else int32.
DType dtype_for_vocabulary(std::int64_t vocab_size);

/// A .bin/.idx pair, mapped. Opening checks the header and every count against the file sizes and takes the same time
/// for any size; what an entry points at is checked when the entry is used. A wrong byte is a ConfigError that names
/// file and byte offset. Safe to read from several threads.
class IndexedDataset {
 public:
  explicit IndexedDataset(const std::string& prefix);
  /// A pair over bytes that the caller keeps alive; `name` stands for the prefix in messages.
  IndexedDataset(std::span<const std::byte> idx, std::span<const std::byte> bin, const std::string& name);

  /// Sequences ("sentences"): the unit of splits and of the sample order.
  std::int64_t size() const { return sequences_; }
  std::int64_t num_documents() const { return documents_ - 1; }
  DType dtype() const { return dtype_; }
  const std::string& prefix() const { return prefix_; }
  bool has_modes() const { return has_modes_; }
  std::int64_t bin_bytes() const { return static_cast<std::int64_t>(bin_.size()); }

  /// Tokens of a sequence; >= 0.
  std::int64_t length(std::int64_t sequence) const;
  /// The i32 lengths as they stand in the file (not aligned), for hashing.
  std::span<const std::byte> length_bytes() const;
  /// First sequence of document `i`; i in [0, num_documents()], the last being size().
  std::int64_t first_sequence(std::int64_t i) const;
  std::int8_t mode(std::int64_t sequence) const;

  /// Copies the tokens [first, first + out.size()) of a sequence, widened. Only for integer dtypes.
  void read(std::int64_t sequence, std::int64_t first, std::span<std::int64_t> out) const;
  /// The stored bytes of a sequence.
  std::span<const std::byte> raw(std::int64_t sequence) const;

  /// The whole .bin file.
  std::span<const std::byte> bin() const { return bin_; }

  /// Checks every entry (one pass over .idx): sequences lie in the .bin file and do not overlap, documents follow one
  /// another. Returns the number of tokens. What trains on a pair or tells of it asks here first.
  std::int64_t verify() const;

  /// Throws ConfigError where one of the files has become shorter since it was opened.
  void check_whole() const;

 private:
  void parse();
  void check_sequence(std::int64_t sequence) const;
  [[noreturn]] void damaged(std::int64_t offset, const std::string& rule, const std::string& got) const;

  std::string prefix_;
  std::optional<MappedFile> idx_file_, bin_file_;
  std::span<const std::byte> idx_, bin_;
  DType dtype_ = DType::I32;
  std::int64_t sequences_ = 0, documents_ = 0;
  bool has_modes_ = false;
};

/// Tokens as they stand in a .bin file of that type. Throws std::runtime_error when one does not fit.
void narrow_tokens(DType dtype, std::span<const std::int32_t> tokens, std::vector<std::byte>& out);

/// Writes the whole .idx file of sequences with these i32 `lengths`, of documents that end before the sequences
/// `document_ends` (i64), and of i8 `modes`, if any; byte offsets follow from the lengths.
void write_index(AtomicFile& idx, DType dtype, std::span<const std::byte> lengths,
                 std::span<const std::byte> document_ends, std::span<const std::byte> modes = {});

/// Writes a pair, byte for byte as Megatron-Core's builder. Memory does not grow with the data: tokens and lengths go
/// to the temporary files as they come, byte offsets are made from the lengths at the end. Nothing stands under the
/// final names before publish(), which removes an old .idx first, so that an old index never meets new tokens.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const std::string& prefix, DType dtype);

  /// One document: `tokens` is the concatenation of its sequences, whose sizes are `lengths` (none: an empty document,
  /// which counts as a document and adds no sequence). `modes`: one a sequence in every document, or never.
  /// Throws std::runtime_error when a token does not fit the dtype.
  void add_document(std::span<const std::int32_t> tokens, std::span<const std::int32_t> lengths,
                    std::span<const std::int8_t> modes = {});
  /// Appends documents of another pair, which must have the same dtype, and modes if and only if this one has.
  void add_documents(const IndexedDataset& from, std::int64_t first, std::int64_t end);
  /// Appends all documents of another pair.
  void add_dataset(const IndexedDataset& part) { add_documents(part, 0, part.num_documents()); }

  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t bin_bytes() const { return static_cast<std::int64_t>(bin_.size()); }

  void publish();

 private:
  void add_sequences(std::span<const std::int32_t> lengths, std::span<const std::int8_t> modes);

  std::string prefix_;
  DType dtype_;
  AtomicFile bin_, lengths_, document_ends_, modes_;  // the last three become the .idx and are never published
  std::int64_t sequences_ = 0, documents_ = 0;
  std::vector<std::byte> narrowed_;
};

}  // namespace megatron::data
