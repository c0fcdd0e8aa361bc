#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "megatron/corpus/spill.h"

namespace megatron::corpus {

/// Sorts and removes repetitions: the hashes of a text become the set that it stands for.
void make_set(std::vector<std::uint64_t>& shingles);

/// |a ∩ b| / |a ∪ b| of two sets, sorted; 0 where both are empty.
double jaccard(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b);

/// Whether jaccard(a, b) >= threshold, told as early as the sizes and what is left allow.
bool similar(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b, double threshold);

/// Sets by number, in memory up to a budget and then on disk.
class ShingleSets {
 public:
  ShingleSets(std::filesystem::path folder, std::size_t most_bytes);

  /// The next set, which must be sorted and without repetitions.
  void add(std::span<const std::uint64_t> set);
  /// After the last add().
  void finish();

  std::size_t size() const { return ends_.size(); }
  bool is_spilled() const { return file_ != nullptr; }

  /// Set `i`; in `buffer` where it lies on disk. Several threads may ask, each with its own buffer.
  std::span<const std::uint64_t> get(std::size_t i, std::vector<std::uint64_t>& buffer) const;

 private:
  std::filesystem::path folder_;
  std::size_t most_values_;
  std::vector<std::uint64_t> values_;  // the first sets; what follows them lies in file_
  std::vector<std::uint64_t> ends_;    // of each set, counted in values from the first
  std::unique_ptr<SpillFile> file_;
};

}  // namespace megatron::corpus
