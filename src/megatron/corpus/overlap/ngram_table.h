#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "megatron/corpus/words.h"

namespace megatron::corpus {

/// Numbers n-grams by their hashes. Filled by one thread, then read by any.
class NgramTable {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  /// The number of an n-gram, a new one where it is not known. Throws ConfigError beyond 2^31 n-grams.
  std::uint32_t add(std::uint64_t hash);

  /// Its number, or kNone.
  std::uint32_t find(std::uint64_t hash) const {
    // One bit tells most of those that are not there from a table that fits the cache.
    const std::uint64_t bit = hash >> filter_shift_;
    if ((filter_[bit >> 6] >> (bit & 63) & 1) == 0) return kNone;
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      if (numbers_[at] == kNone || hashes_[at] == hash) return numbers_[at];
    }
  }

  std::size_t size() const { return size_; }

 private:
  void grow();
  void put(std::uint64_t hash, std::uint32_t number);

  std::vector<std::uint64_t> hashes_ = std::vector<std::uint64_t>(64);
  std::vector<std::uint32_t> numbers_ = std::vector<std::uint32_t>(64, kNone);
  std::vector<std::uint64_t> filter_ = std::vector<std::uint64_t>(8);
  int filter_shift_ = 64 - 9;
  std::size_t mask_ = 63, size_ = 0;
};

/// One n-gram of a text.
struct NgramAt {
  std::size_t word;      ///< the first of its words
  std::size_t length;    ///< words
  std::uint32_t number;  ///< in the table
};

/// Finds the n-grams of a table in texts given as hashes of words. One thread at a time.
class NgramFinder {
 public:
  /// `lengths`: of the n-grams in the table.
  NgramFinder(const NgramTable& table, const std::set<std::size_t>& lengths)
      : table_(table), lengths_(lengths.begin(), lengths.end()) {}

  /// Calls `found(const NgramAt&)` for each occurrence, by length and then by place.
  template <class OnFound>
  void find(std::span<const std::uint64_t> words, OnFound&& found) {
    for (const std::size_t length : lengths_) {
      ngrams_.clear();
      append_ngrams(words, length, ngrams_);
      for (std::size_t i = 0; i < ngrams_.size(); ++i)
        if (const std::uint32_t number = table_.find(ngrams_[i]); number != NgramTable::kNone)
          found(NgramAt{.word = i, .length = length, .number = number});
    }
  }

 private:
  const NgramTable& table_;
  std::vector<std::size_t> lengths_;
  std::vector<std::uint64_t> ngrams_;
};

}  // namespace megatron::corpus
