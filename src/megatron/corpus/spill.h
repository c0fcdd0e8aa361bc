#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/files/file.h"

// What does not fit into memory: temporary files without a name, of which nothing is left however the program ends.
namespace megatron::corpus {

/// A temporary file that is appended to and read anywhere. Appends are one thread's; reads, after flush(), anybody's.
class SpillFile {
 public:
  /// Throws ConfigError where `folder` may not be written.
  explicit SpillFile(const std::filesystem::path& folder);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// Returns the byte offset at which `values` begin. Throws std::runtime_error where the disk is full.
  std::uint64_t append(std::span<const std::uint64_t> values);
  void flush();
  /// Fills `out` from byte `offset`; all of it was written before.
  void read(std::uint64_t offset, std::span<std::uint64_t> out) const;

 private:
  AtomicFile file_;
  int descriptor_ = -1;
};

/// Sorts 64-bit values of which the upper halves are keys and the lower halves never fall from one add() to the next
/// (document numbers): by key, within a key in the order of adding. Up to `most_in_memory` values lie in memory; more
/// are sorted in runs of that many, which lie in a temporary file and are merged when read. The order is the same.
class SortedValues {
 public:
  SortedValues(std::filesystem::path folder, std::size_t most_in_memory);

  void add(std::uint64_t value) {
    if (values_.size() == values_.capacity()) make_room();
    values_.push_back(value);
  }
  /// After the last add(); `scratch` may be shared by the sorts of one thread.
  void finish(std::vector<std::uint64_t>& scratch);

  std::int64_t size() const { return spilled_ + static_cast<std::int64_t>(values_.size()); }
  bool is_spilled() const { return !runs_.empty(); }

  /// Goes over the sorted values once. Several readers may go at once.
  class Reader {
   public:
    explicit Reader(const SortedValues& values);
    bool next(std::uint64_t& value);

   private:
    struct SortedRun {
      std::uint64_t offset, left;  // of what is not in the buffer
      std::vector<std::uint64_t> buffer;
      std::size_t next = 0;
    };
    bool refill(SortedRun& run);
    void sift(std::size_t at);

    const SortedValues* values_;
    std::size_t position_ = 0;  // where nothing is spilled
    std::vector<SortedRun> runs_;
    std::vector<std::uint32_t> heap_;  // runs that are not at their end, the one with the least value first
  };

 private:
  struct SortedRun {
    std::uint64_t offset, size;
  };
  void make_room();
  void spill();

  std::filesystem::path folder_;
  std::size_t most_;
  std::vector<std::uint64_t> values_;
  std::unique_ptr<SpillFile> file_;
  std::vector<SortedRun> runs_;
  std::int64_t spilled_ = 0;
};

}  // namespace megatron::corpus
