#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace megatron::data {

/// The bytes of a file, of standard input ("-") or of memory, decompressed where the content is gzip, zstd or xz
/// (members, frames or streams one after another are one stream). A name that ends in .gz, .zst or .xz with other
/// content is an error, so that a damaged file is not taken for text, and so is what bzip2, lz4, lzma or zip packed.
/// Damage and a stream that breaks off are a ConfigError naming the file and the byte offset in the compressed file.
/// Decompression takes at most 128 MiB.
///
/// Of a parquet or Arrow file the bytes are its rows as lines of JSON (columns/rows.h); such a file cannot be a pipe,
/// and takes the memory of one page a column, or one batch.
class ByteStream {
 public:
  explicit ByteStream(const std::string& path);
  ByteStream(std::span<const std::byte> memory, const std::string& name);
  ~ByteStream();
  ByteStream(ByteStream&&) noexcept;
  ByteStream& operator=(ByteStream&&) noexcept;

  /// Fills `out` as far as the stream goes; returns the bytes given, fewer than out.size() only at the end.
  std::size_t read(std::span<char> out);

  /// As read(), but gives what is there at once, of a pipe or a terminal what came so far: at least a byte before the
  /// end.
  std::size_t read_some(std::span<char> out);

  /// Passes over `bytes` of the stream. Throws ConfigError where it ends before.
  void skip(std::int64_t bytes);

  /// Bytes taken from the file so far, before decompression.
  std::int64_t position() const;

  /// Whether the bytes are rows as lines of JSON.
  bool is_rows() const { return is_rows_; }

 private:
  class Source;
  class Decoder;
  class Plain;
  class Gzip;
  class Zstd;
  class Xz;
  class Rows;

  void choose_decoder();

  std::unique_ptr<Source> source_;
  std::unique_ptr<Decoder> decoder_;
  bool is_rows_ = false;
};

/// Throws one ConfigError for all of `inputs` that are not there, are folders or may not be read: before the first is
/// worked on. Opens none, as a pipe can be read once. "-" is standard input.
void check_readable(const std::vector<std::string>& inputs);

}  // namespace megatron::data
