#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <vector>

#include "megatron/corpus/spill.h"

namespace megatron::corpus {

/// For each band, which documents have which key: eight bytes each, sorted, on disk where they do not fit.
class BandIndex {
 public:
  /// Takes at most about `most_bytes` of memory, sorting included.
  BandIndex(std::size_t bands, std::filesystem::path folder, std::size_t most_bytes, int workers);

  std::size_t bands() const { return bands_.size(); }

  /// One key a band. Documents come in ascending order.
  void add(std::uint32_t document, std::span<const std::uint32_t> keys) {
    for (std::size_t band = 0; band < keys.size(); ++band)
      bands_[band].add(static_cast<std::uint64_t>(keys[band]) << 32 | document);
  }
  /// After the last document: sorts on `workers` threads.
  void finish(int workers);

  bool is_spilled() const { return bands_[0].is_spilled(); }

  /// Calls `bucket(documents)` for the documents of each key that two or more have, in ascending order.
  template <class OnBucket>
  void for_each_bucket(std::size_t band, OnBucket&& bucket) const {
    SortedValues::Reader reader(bands_[band]);
    std::vector<std::uint32_t> documents;
    std::uint64_t value = 0;
    std::uint32_t key = 0;
    while (reader.next(value)) {
      if (static_cast<std::uint32_t>(value >> 32) != key) {
        if (documents.size() > 1) bucket(std::span<const std::uint32_t>(documents));
        documents.clear();
        key = static_cast<std::uint32_t>(value >> 32);
      }
      documents.push_back(static_cast<std::uint32_t>(value));
    }
    if (documents.size() > 1) bucket(std::span<const std::uint32_t>(documents));
  }

 private:
  std::deque<SortedValues> bands_;
};

}  // namespace megatron::corpus
