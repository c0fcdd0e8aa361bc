#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

// Tables of parquet and Arrow files, row by row, as lines of JSON.
namespace megatron::data {

/// The bytes of a file that somebody else wrote, and its name for messages.
struct ColumnFile {
  std::string name;
  std::span<const std::byte> bytes = {};

  /// Throws ConfigError: what must hold at byte `offset`, and what is there.
  [[noreturn]] void damaged(std::uint64_t offset, const std::string& rule, const std::string& got) const;
  /// Throws ConfigError for a file that is whole, but written in a way that is not read.
  [[noreturn]] void not_read(const std::string& rule, const std::string& got) const;
  /// `size` bytes at `offset`, which must lie in the file.
  std::span<const std::byte> part(std::uint64_t offset, std::uint64_t size, const char* what) const;
};

/// The rows of one file, in its order. Each is a line {"column": value, …}: strings, numbers, booleans, nulls, lists as
/// arrays, structs as objects, maps as arrays of {"key", "value"}. Columns of other types (dates, decimals, unions) are
/// left out; bytes that are no string are null unless they are UTF-8.
class RowSource {
 public:
  virtual ~RowSource() = default;
  /// Appends some rows, at least one; false at the end. Throws ConfigError where the file is damaged.
  virtual bool next(std::string& lines) = 0;
  /// About how many bytes of the file have been read.
  virtual std::int64_t position() const = 0;
};

/// Rows are appended up to this many bytes at once.
inline constexpr std::size_t kRowsBytes = 1 << 18;
/// A row of more text, and a page or buffer that unpacks to more, is taken for damage: few bytes can stand for many.
inline constexpr std::size_t kMaxRowBytes = std::size_t{1} << 30;
/// Types within types, and columns, at most.
inline constexpr int kMaxNesting = 32;
inline constexpr std::size_t kMaxColumns = 1 << 16;

/// Apache Parquet: all physical types but INT96 and fixed-length arrays, nested, all encodings but byte stream split;
/// uncompressed, snappy, gzip, zstd, lz4 (raw). The bytes must outlive it.
std::unique_ptr<RowSource> open_parquet(ColumnFile file);

/// Apache Arrow's IPC format, as a stream (`datasets` writes such) or a file (Feather 2); dictionaries, lz4 and zstd.
std::unique_ptr<RowSource> open_arrow(ColumnFile file);

}  // namespace megatron::data
