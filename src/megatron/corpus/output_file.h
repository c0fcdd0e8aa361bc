#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace megatron::corpus {

/// A file that appears under its name complete or not at all, compressed as its name ends: .gz, .zst, .xz, else as it
/// is. The compressed bytes depend on nothing but what is written.
class OutputFile {
 public:
  /// Makes the folder. Throws ConfigError where it may not be written, and for a name that ends in .bz2, .lz4, .lzma or
  /// .zip.
  explicit OutputFile(const std::string& path);
  ~OutputFile();

  void write(std::string_view bytes);
  /// The file is on the disk under its name when this returns.
  void commit();

  /// Bytes written so far, before compression.
  std::int64_t size() const { return size_; }

 private:
  class Encoder;
  class Gzip;
  class Zstd;
  class Xz;

  std::unique_ptr<Encoder> encoder_;
  std::int64_t size_ = 0;
};

}  // namespace megatron::corpus
