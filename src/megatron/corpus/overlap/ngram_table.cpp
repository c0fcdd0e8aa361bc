#include "megatron/corpus/overlap/ngram_table.h"

#include <bit>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::corpus {

void NgramTable::put(std::uint64_t hash, std::uint32_t number) {
  std::size_t at = hash & mask_;
  while (numbers_[at] != kNone) at = (at + 1) & mask_;
  hashes_[at] = hash;
  numbers_[at] = number;
  const std::uint64_t bit = hash >> filter_shift_;
  filter_[bit >> 6] |= std::uint64_t{1} << (bit & 63);
}

void NgramTable::grow() {
  const auto hashes = std::exchange(hashes_, std::vector<std::uint64_t>(hashes_.size() * 2));
  const auto numbers = std::exchange(numbers_, std::vector<std::uint32_t>(hashes_.size(), kNone));
  mask_ = hashes_.size() - 1;
  // Eight bits a place, sixteen or more an n-gram: at most one in sixteen that is not there is looked for.
  filter_.assign(hashes_.size() * 8 / 64, 0);
  filter_shift_ = 64 - std::countr_zero(hashes_.size() * 8);
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (numbers[i] != kNone) put(hashes[i], numbers[i]);
}

std::uint32_t NgramTable::add(std::uint64_t hash) {
  if (const std::uint32_t known = find(hash); known != kNone) return known;
  if (size_ >= std::size_t{1} << 31)
    throw ConfigError(rule_got_fix("a test set must have fewer than 2^31 different n-grams.", "more",
                                   "compare with a part of the test set at a time"));
  if ((size_ + 1) * 2 > hashes_.size()) grow();
  put(hash, static_cast<std::uint32_t>(size_));
  return static_cast<std::uint32_t>(size_++);
}

}  // namespace megatron::corpus
