#include "megatron/text/models/pair_queue.h"

#include <algorithm>
#include <functional>

namespace megatron::text {
namespace {

constexpr std::greater<> kLater;

}  // namespace

void PairQueue::reset(std::size_t ranks) {
  if (bucket_of_.size() == ranks && waiting_.empty()) return;  // the last piece left it empty
  bucket_of_.assign(ranks, kNone);
  buckets_.clear();
  free_.clear();
  waiting_.clear();
}

void PairQueue::add(std::uint32_t rank, std::uint32_t place) {
  std::uint32_t& index = bucket_of_[rank];
  if (index == kNone) {
    if (free_.empty()) {
      index = static_cast<std::uint32_t>(buckets_.size());
      buckets_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    waiting_.push_back(rank);
    std::push_heap(waiting_.begin(), waiting_.end(), kLater);
  }
  Bucket& bucket = buckets_[index];
  if (bucket.run.empty() || place >= bucket.run.back()) {
    bucket.run.push_back(place);
  } else {
    bucket.late.push_back(place);
    std::push_heap(bucket.late.begin(), bucket.late.end(), kLater);
  }
}

bool PairQueue::take(std::uint32_t& rank, std::uint32_t& place) {
  if (waiting_.empty()) return false;
  rank = waiting_.front();
  Bucket& bucket = buckets_[bucket_of_[rank]];
  if (!bucket.late.empty() && (bucket.taken == bucket.run.size() || bucket.late.front() < bucket.run[bucket.taken])) {
    place = bucket.late.front();
    std::pop_heap(bucket.late.begin(), bucket.late.end(), kLater);
    bucket.late.pop_back();
  } else {
    place = bucket.run[bucket.taken++];
  }
  if (bucket.taken == bucket.run.size() && bucket.late.empty()) release();
  return true;
}

/// Frees the bucket of the lowest rank, which is empty.
void PairQueue::release() {
  constexpr std::size_t kKept = 4096;  // places that a bucket keeps room for
  std::uint32_t& index = bucket_of_[waiting_.front()];
  Bucket& bucket = buckets_[index];
  if (bucket.run.capacity() > kKept) bucket.run = {};
  bucket.run.clear();
  bucket.taken = 0;
  free_.push_back(index);
  index = kNone;
  std::pop_heap(waiting_.begin(), waiting_.end(), kLater);
  waiting_.pop_back();
}

}  // namespace megatron::text
