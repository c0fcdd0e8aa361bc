#include "megatron/corpus/spill.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::corpus {
namespace {

constexpr std::size_t kReadValues = 1 << 13;  // 64 KB of a run at a time

/// Stable, by the upper halves: three passes of 11 bits, of which those that would move nothing are left out.
void radix_sort(std::vector<std::uint64_t>& values, std::vector<std::uint64_t>& scratch) {
  constexpr int kBits = 11;
  constexpr std::size_t kBuckets = std::size_t{1} << kBits;
  scratch.resize(values.size());
  for (int shift = 32; shift < 64; shift += kBits) {
    std::array<std::size_t, kBuckets> places{};
    for (const std::uint64_t value : values) ++places[value >> shift & (kBuckets - 1)];
    if (std::find(places.begin(), places.end(), values.size()) != places.end()) continue;
    std::size_t sum = 0;
    for (std::size_t& place : places) sum += std::exchange(place, sum);
    for (const std::uint64_t value : values) scratch[places[value >> shift & (kBuckets - 1)]++] = value;
    values.swap(scratch);
  }
}

}  // namespace

SpillFile::SpillFile(const std::filesystem::path& folder) : file_(folder / "megatron-spill") {
  descriptor_ = ::open(file_.temporary_path().c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0)
    throw std::runtime_error(concat("cannot read a temporary file in ", folder.string(), ": ", std::strerror(errno)));
}

SpillFile::~SpillFile() { ::close(descriptor_); }

std::uint64_t SpillFile::append(std::span<const std::uint64_t> values) {
  const std::uint64_t offset = file_.size();
  file_.write(std::as_bytes(values));
  return offset;
}

void SpillFile::flush() { file_.flush(); }

void SpillFile::read(std::uint64_t offset, std::span<std::uint64_t> out) const {
  auto* to = reinterpret_cast<char*>(out.data());
  for (std::size_t left = out.size_bytes(); left > 0;) {
    const ssize_t n = ::pread(descriptor_, to, left, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw std::runtime_error(concat("cannot read a temporary file: ", std::strerror(n < 0 ? errno : EIO)));
    to += n;
    left -= static_cast<std::size_t>(n);
    offset += static_cast<std::uint64_t>(n);
  }
}

SortedValues::SortedValues(std::filesystem::path folder, std::size_t most_in_memory)
    : folder_(std::move(folder)), most_(std::max<std::size_t>(most_in_memory, 1)) {}

void SortedValues::make_room() {
  if (values_.size() >= most_) {
    std::vector<std::uint64_t> scratch;
    radix_sort(values_, scratch);
    spill();
    return;
  }
  values_.reserve(std::min(most_, std::max<std::size_t>(values_.size() * 2, 1024)));
}

void SortedValues::spill() {
  if (!file_) file_ = std::make_unique<SpillFile>(folder_);
  runs_.push_back({file_->append(values_), values_.size()});
  spilled_ += static_cast<std::int64_t>(values_.size());
  values_.clear();
  values_.reserve(most_);  // the sort may have left the scratch's memory here
}

void SortedValues::finish(std::vector<std::uint64_t>& scratch) {
  radix_sort(values_, scratch);
  if (runs_.empty()) return;
  if (!values_.empty()) spill();
  std::vector<std::uint64_t>().swap(values_);
  file_->flush();
}

SortedValues::Reader::Reader(const SortedValues& values) : values_(&values) {
  for (const SortedValues::SortedRun& run : values.runs_) {
    runs_.push_back({run.offset, run.size, {}, 0});
    if (refill(runs_.back())) heap_.push_back(static_cast<std::uint32_t>(runs_.size() - 1));
  }
  for (std::size_t i = heap_.size(); i-- > 0;) sift(i);
}

bool SortedValues::Reader::refill(SortedRun& run) {
  run.buffer.resize(static_cast<std::size_t>(std::min<std::uint64_t>(run.left, kReadValues)));
  run.next = 0;
  if (run.buffer.empty()) return false;
  values_->file_->read(run.offset, run.buffer);
  run.offset += run.buffer.size() * sizeof run.buffer[0];
  run.left -= run.buffer.size();
  return true;
}

/// Restores the heap below `at`. Values of different runs differ in their lower halves or are in the order of the runs.
void SortedValues::Reader::sift(std::size_t at) {
  const auto key = [&](std::size_t i) {
    const SortedRun& run = runs_[heap_[i]];
    return std::pair(run.buffer[run.next] >> 32, heap_[i]);
  };
  for (;;) {
    std::size_t least = at;
    for (const std::size_t child : {2 * at + 1, 2 * at + 2})
      if (child < heap_.size() && key(child) < key(least)) least = child;
    if (least == at) return;
    std::swap(heap_[at], heap_[least]);
    at = least;
  }
}

bool SortedValues::Reader::next(std::uint64_t& value) {
  if (values_->runs_.empty()) {
    if (position_ == values_->values_.size()) return false;
    value = values_->values_[position_++];
    return true;
  }
  if (heap_.empty()) return false;
  SortedRun& run = runs_[heap_[0]];
  value = run.buffer[run.next++];
  if (run.next == run.buffer.size() && !refill(run)) {
    heap_[0] = heap_.back();
    heap_.pop_back();
  }
  if (!heap_.empty()) sift(0);
  return true;
}

}  // namespace megatron::corpus
