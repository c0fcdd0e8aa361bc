#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace megatron::data {

/// A file mapped for reading. Empty files are allowed. Errors: ConfigError when it does not exist or is no regular
/// file, std::runtime_error when the system refuses.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// A file that appears under its name whole or not at all: written under a temporary name beside it
/// ("PATH.tmp-XXXXXX"), which the destructor removes unless publish() was reached. Missing folders are made. Every
/// error is a std::runtime_error that names the path.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Appends, through a buffer.
  void write(const void* bytes, std::size_t size);
  /// Overwrites what is already written.
  void overwrite(std::int64_t offset, const void* bytes, std::size_t size);
  /// Reads back what is already written, up to the end of `out`; returns the bytes read.
  std::size_t read_back(std::int64_t offset, std::span<std::byte> out);
  std::int64_t size() const { return written_ + static_cast<std::int64_t>(buffer_.size()); }

  /// Allocates `size` bytes of disk (so that a full disk is an error here and not a crash later) and maps them for
  /// writing, instead of write(). The mapping lives until finish().
  std::span<std::byte> map(std::int64_t size);

  /// Everything on disk; may still be called off.
  void finish();
  /// Gives the file its name. Calls finish() if that was not done.
  void publish();

 private:
  void flush();
  [[noreturn]] void fail(const char* what) const;

  std::string path_, temporary_;
  int fd_ = -1;
  std::vector<std::byte> buffer_;
  std::int64_t written_ = 0;
  std::span<std::byte> mapped_;
};

}  // namespace megatron::data
