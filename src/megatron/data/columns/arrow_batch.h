#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megatron/data/columns/arrow_schema.h"

namespace megatron::data {

/// The values of one field in a batch: views of the file, or of what was unpacked.
struct ArrowArray {
  using Bytes = std::span<const std::byte>;
  std::uint64_t length = 0;
  Bytes validity = {};           ///< a bit for each value; empty: none is null
  Bytes first = {};              ///< numbers, bits, views, indices into a dictionary, or offsets
  Bytes second = {};             ///< the text that offsets are of
  std::vector<Bytes> more = {};  ///< the texts that views are of
  std::vector<ArrowArray> children = {};
};

/// Columns of a batch, of which every buffer is long enough for its length; what offsets say is checked where it is
/// read.
struct ArrowBatch {
  std::uint64_t rows = 0;
  std::vector<ArrowArray> columns = {};
  std::deque<std::vector<std::byte>> unpacked = {};  ///< what arrays are views of
};

/// By their id; several where later ones add to the first.
using ArrowDictionaries = std::map<std::int64_t, std::vector<ArrowBatch>>;

/// The batch that the head `batch` (a RecordBatch) tells of, whose buffers lie at byte `body` of the file. `values`:
/// the fields are those of a dictionary's values, not of indices into it.
ArrowBatch read_arrow_batch(const FlatTable& batch, const std::vector<ArrowField>& fields, bool values,
                            std::uint64_t body, std::span<const std::byte> bytes, const ColumnFile& file);

/// Writes values of one file as JSON.
class ArrowJson {
 public:
  explicit ArrowJson(const ColumnFile& file) : file_(file) {}

  ArrowDictionaries dictionaries = {};

  /// Appends value `index` of an array. `at`: where its batch stands, for messages.
  void write(const ArrowField& field, const ArrowArray& array, std::uint64_t index, std::uint64_t at,
             std::string& out) const;

  /// To be called before a row is written to `out`.
  void begin_row(const std::string& out) { row_begin_ = out.size(); }

 private:
  void write_value(const ArrowField& field, const ArrowArray& array, std::uint64_t index, std::uint64_t at,
                   std::string& out) const;
  void write_list(const ArrowField& field, const ArrowArray& array, std::uint64_t begin, std::uint64_t end,
                  std::uint64_t at, std::string& out) const;
  void write_text(std::span<const std::byte> bytes, bool is_text, std::uint64_t at, std::string& out) const;
  std::span<const std::byte> view(const ArrowArray& array, std::uint64_t index, std::uint64_t at) const;

  const ColumnFile& file_;
  std::size_t row_begin_ = 0;
};

}  // namespace megatron::data
