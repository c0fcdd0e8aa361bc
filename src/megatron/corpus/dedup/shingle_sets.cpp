#include "megatron/corpus/dedup/shingle_sets.h"

#include <algorithm>
#include <cmath>

namespace megatron::corpus {

void make_set(std::vector<std::uint64_t>& shingles) {
  std::sort(shingles.begin(), shingles.end());
  shingles.erase(std::unique(shingles.begin(), shingles.end()), shingles.end());
}

double jaccard(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
  std::size_t i = 0, j = 0, common = 0;
  while (i < a.size() && j < b.size()) {
    const std::uint64_t x = a[i], y = b[j];
    common += x == y ? 1 : 0;
    i += x <= y ? 1 : 0;
    j += y <= x ? 1 : 0;
  }
  const std::size_t all = a.size() + b.size() - common;
  return all == 0 ? 0 : static_cast<double>(common) / static_cast<double>(all);
}

bool similar(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b, double threshold) {
  if (a.size() > b.size()) std::swap(a, b);
  const auto ratio = [](std::size_t part, std::size_t all) {
    return static_cast<double>(part) / static_cast<double>(all);
  };
  if (a.empty() || ratio(a.size(), b.size()) < threshold) return false;
  std::size_t i = 0, j = 0, common = 0;
  while (i < a.size() && j < b.size()) {
    // Whatever is left of the smaller set may still be common, and no more; looked at every 32 steps.
    const std::size_t most = common + std::min(a.size() - i, b.size() - j);
    if (ratio(most, a.size() + b.size() - most) < threshold) return false;
    for (int step = 0; step < 32 && i < a.size() && j < b.size(); ++step) {
      const std::uint64_t x = a[i], y = b[j];
      common += x == y ? 1 : 0;
      i += x <= y ? 1 : 0;
      j += y <= x ? 1 : 0;
    }
  }
  return ratio(common, a.size() + b.size() - common) >= threshold;
}

ShingleSets::ShingleSets(std::filesystem::path folder, std::size_t most_bytes)
    : folder_(std::move(folder)), most_values_(most_bytes / sizeof(std::uint64_t)) {}

void ShingleSets::add(std::span<const std::uint64_t> set) {
  const std::uint64_t begin = ends_.empty() ? 0 : ends_.back();
  ends_.push_back(begin + set.size());
  if (!file_ && values_.size() + set.size() > most_values_) file_ = std::make_unique<SpillFile>(folder_);
  if (file_) {
    file_->append(set);
    return;
  }
  if (values_.size() + set.size() > values_.capacity())  // a vector left alone would grow past the budget
    values_.reserve(std::min(most_values_, std::max(values_.size() + set.size(), values_.size() + values_.size() / 2)));
  values_.insert(values_.end(), set.begin(), set.end());
}

void ShingleSets::finish() {
  if (file_) file_->flush();
}

std::span<const std::uint64_t> ShingleSets::get(std::size_t i, std::vector<std::uint64_t>& buffer) const {
  const std::uint64_t begin = i == 0 ? 0 : ends_[i - 1], size = ends_[i] - begin;
  if (begin + size <= values_.size())
    return std::span(values_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
  buffer.resize(static_cast<std::size_t>(size));
  file_->read((begin - values_.size()) * sizeof(std::uint64_t), buffer);
  return buffer;
}

}  // namespace megatron::corpus
