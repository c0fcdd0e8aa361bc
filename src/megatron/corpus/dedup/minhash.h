#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// MinHash signatures (Broder 1997) and their bands (locality-sensitive hashing; Leskovec et al., "Mining of massive
// datasets", section 3.4): two sets agree at one place of their signatures with probability J, their Jaccard
// similarity, so in one whole band of r places with J^r, and in at least one of b bands with 1 - (1 - J^r)^b.
namespace megatron::corpus {

/// How signatures are cut.
struct Bands {
  int bands = 0;
  int rows = 0;  ///< places of a band

  /// Probability that sets of this similarity have a band in common.
  double recall(double jaccard) const;
};

/// The bands that `hashes` places give with the most rows (fewest false candidates) at which sets as similar as
/// `threshold` are found with probability 0.95 or more. Throws ConfigError unless hashes is 1 to 4096 and the threshold
/// above 0 and at most 1.
Bands choose_bands(int hashes, double threshold);

/// Computes signatures; place i holds the least value of a_i * h + b_i modulo 2^32 over the hashes h of a set, a_i odd.
/// Immutable: several threads may use one.
class MinHasher {
 public:
  MinHasher(Bands bands, std::uint64_t seed);

  const Bands& bands() const { return bands_; }

  /// One key a band into `keys`: equal for equal bands, else different but once in 2^32. Of the hashes, which may
  /// repeat and are at least one, the upper halves count.
  void band_keys(std::span<const std::uint64_t> shingles, std::span<std::uint32_t> keys) const;

  /// The signature itself, bands * rows places.
  std::vector<std::uint32_t> signature(std::span<const std::uint64_t> shingles) const;

 private:
  /// Writes factors_.size() places.
  void fill(std::span<const std::uint64_t> shingles, std::uint32_t* least) const;

  Bands bands_;
  std::vector<std::uint32_t> factors_, terms_;  // padded to whole blocks of kBlock
};

}  // namespace megatron::corpus
