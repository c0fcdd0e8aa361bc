#pragma once
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "megatron/base/file.h"
#include "megatron/checkpoint/manifest.h"

// Files that prove that they are what was written. No torch here.
namespace megatron::checkpoint {

/// A new file that is checksummed by block while it is written.
class HashedWriter {
 public:
  explicit HashedWriter(const std::filesystem::path& path);

  void write(std::span<const std::byte> bytes);
  /// Makes the file durable under its name. The record's name has no folder.
  FileRecord finish();

 private:
  struct FreeState {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  AtomicFile file_;
  FileRecord record_;
  std::unique_ptr<XXH3_state_t, FreeState> hash_;
};

/// A file of a checkpoint. What is read has been compared with its checksum; blocks that are not asked for are not
/// read.
class CheckedReader {
 public:
  /// Throws ConfigError where the file is missing or of another size than its record says.
  CheckedReader(const std::filesystem::path& folder, FileRecord record);

  /// Throws ConfigError naming file and byte offset where the bytes do not match their checksum.
  void read(std::uint64_t offset, std::span<std::byte> into);

  std::string name() const { return file_.path().string(); }
  std::uint64_t size() const { return record_.size; }

 private:
  void check(std::uint64_t block);

  FileRecord record_;
  MappedFile file_;
  std::uint64_t checked_;  ///< the block last checked: strided reads come back to it
};

}  // namespace megatron::checkpoint
