#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/checkpoint/files/manifest.h"

// Files that prove that they are what was written. No torch here.
namespace megatron::checkpoint {

/// A new file that is checksummed by block while it is written, past the system's cache where the file system can
/// (O_DIRECT): the fastest, and training keeps its memory bandwidth. Four buffers of 4 MiB: one is filled while two
/// threads of the file's own write others to the disk. The file lies in a folder that is itself temporary.
class HashedWriter {
 public:
  /// `size`: what will be written in all, reserved at once where the file system can, so that a full disk shows here.
  /// Throws std::runtime_error where the file cannot be made.
  HashedWriter(const std::filesystem::path& path, std::uint64_t size);
  ~HashedWriter();
  HashedWriter(const HashedWriter&) = delete;
  HashedWriter& operator=(const HashedWriter&) = delete;

  /// Where the next bytes go; never empty, at most a block. The first `count` of them are then handed over by wrote().
  /// Throws std::runtime_error where earlier bytes could not be written.
  std::span<std::byte> space();
  void wrote(std::size_t count);
  void write(std::span<const std::byte> bytes);
  /// Waits until the file is on the disk (its name is durable with the folder's). The record's name has no folder.
  FileRecord finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A file of a checkpoint. What is read has been compared with its checksum; blocks that are not asked for are not
/// read. Holds one block. Reading goes through the system's cache, which the ranks of a machine share.
class CheckedReader {
 public:
  /// Throws Damage where the file is missing or of another size than its record says; here and below
  /// std::runtime_error where the system fails, whatever the file.
  CheckedReader(const std::filesystem::path& folder, FileRecord record);
  ~CheckedReader();
  CheckedReader(const CheckedReader&) = delete;
  CheckedReader& operator=(const CheckedReader&) = delete;

  /// Says that these bytes are read next, after those of earlier calls: the system fetches them some blocks ahead. Only
  /// speed depends on it; a read() of many blocks that was not foretold foretells itself.
  void expect(std::uint64_t offset, std::uint64_t size);

  /// Throws Damage naming file and byte offset where the bytes do not match their checksum or do not lie in the file.
  void read(std::uint64_t offset, std::span<std::byte> into);

  std::string name() const { return path_.string(); }
  std::uint64_t size() const { return record_.size; }
  /// Of blocks that were loaded and compared.
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  void fetch_ahead(std::uint64_t block);
  void load(std::uint64_t block, std::byte* into);

  std::filesystem::path path_;
  FileRecord record_;
  int descriptor_ = -1;
  std::vector<std::byte> buffer_;  ///< the block read last: strided reads come back to it
  std::uint64_t buffered_;
  std::vector<std::uint64_t> expected_;     ///< blocks, as they will be loaded
  std::size_t loaded_ = 0, asked_for_ = 0;  ///< how many of them have been
  std::uint64_t bytes_read_ = 0;
};

}  // namespace megatron::checkpoint
