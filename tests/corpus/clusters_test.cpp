#include "megatron/corpus/dedup/clusters.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/corpus/support.h"

namespace megatron::corpus {
namespace {

/// Sets of which all are in one bucket of the only band.
class OneBucket {
 public:
  /// Ten values that no other call gives.
  std::vector<std::uint64_t> next_set() {
    std::vector<std::uint64_t> set(10);
    std::iota(set.begin(), set.end(), fresh_);
    fresh_ += 10;
    return set;
  }
  void add(const std::vector<std::uint64_t>& set) { all_.push_back(set); }

  Clusters cluster(int workers = 2) const {
    BandIndex index(2, ".", 1 << 20, 1);
    ShingleSets sets(".", 1 << 20);
    std::vector<std::uint32_t> candidate_of(all_.size());
    std::iota(candidate_of.begin(), candidate_of.end(), 0);
    for (std::uint32_t i = 0; i < all_.size(); ++i) {
      const std::uint32_t keys[] = {7, static_cast<std::uint32_t>(all_[i].front())};
      index.add(i, keys);
      sets.add(all_[i]);
    }
    index.finish(workers);
    sets.finish();
    return corpus::cluster(index, candidate_of, sets, 0.7, workers);
  }

 private:
  std::uint64_t fresh_ = 1;
  std::vector<std::vector<std::uint64_t>> all_;
};

/// Nine of the ten values of `set`, and one more.
std::vector<std::uint64_t> like(std::vector<std::uint64_t> set, std::uint64_t other) {
  set.back() = other;
  return set;
}

TEST(Clusters, OfACrowdedBucketConnectWhatIsNearOrAtItsBegin) {
  OneBucket bucket;
  std::vector<std::vector<std::uint64_t>> sets;
  for (int i = 0; i < 500; ++i) sets.push_back(bucket.next_set());
  sets[401] = like(sets[400], 1 << 20);  // the one before it
  sets[464] = like(sets[400], 1 << 21);  // the 64th before it
  sets[300] = like(sets[63], 1 << 22);   // the last of the first 64
  sets[301] = like(sets[64], 1 << 23);   // neither: not compared
  for (const auto& set : sets) bucket.add(set);
  for (const int workers : {1, 3}) {
    const Clusters clusters = bucket.cluster(workers);
    EXPECT_EQ(clusters.crowded_buckets, 1);
    for (std::uint32_t i = 0; i < 500; ++i)
      EXPECT_EQ(clusters.first[i], i == 401 || i == 464 ? 400 : i == 300 ? 63 : i);
  }
}

TEST(Clusters, OfABucketThatIsNotCrowdedConnectAllPairs) {
  OneBucket bucket;
  std::vector<std::vector<std::uint64_t>> sets;
  for (int i = 0; i < 128; ++i) sets.push_back(bucket.next_set());
  sets[127] = like(sets[64], 1 << 20);
  for (const auto& set : sets) bucket.add(set);
  const Clusters clusters = bucket.cluster();
  EXPECT_EQ(clusters.crowded_buckets, 0);
  EXPECT_EQ(clusters.first[127], 64u);
}

TEST(Clusters, CountEqualSetsOnce) {
  OneBucket bucket;
  for (int i = 0; i < 64; ++i) bucket.add(bucket.next_set());
  const auto set = bucket.next_set(), copied = bucket.next_set();
  bucket.add(set);
  for (int i = 0; i < 100; ++i) bucket.add(copied);
  bucket.add(like(set, 1 << 20));
  const Clusters clusters = bucket.cluster();
  EXPECT_EQ(clusters.crowded_buckets, 0);
  EXPECT_EQ(clusters.first[165], 64u) << "the hundred copies between them do not part these two";
  for (std::uint32_t i = 65; i < 165; ++i) EXPECT_EQ(clusters.first[i], 65u);
}

TEST(Clusters, NeedNoCandidates) { EXPECT_TRUE(OneBucket().cluster().first.empty()); }

}  // namespace
}  // namespace megatron::corpus
