#include "megatron/corpus/dedup/minhash.h"

#include <gtest/gtest.h>

#include <cmath>

#include "megatron/base/philox.h"
#include "tests/corpus/support.h"

namespace megatron::corpus {
namespace {

std::vector<std::uint64_t> random_hashes(std::mt19937_64& engine, std::size_t n) {
  std::vector<std::uint64_t> hashes(n);
  for (std::uint64_t& hash : hashes) hash = engine();
  return hashes;
}

TEST(MinHash, HoldsTheLeastValueOfEachFunctionForSetsOfAnySize) {
  std::mt19937_64 engine(1);
  const Bands bands{.bands = 7, .rows = 11};  // 77 places: more than one vector, no whole number of them
  const MinHasher hasher(bands, 42);
  const std::uint64_t key = stream_key(42, "minhash");
  for (const std::size_t n : {1u, 2u, 63u, 1023u, 1024u, 1025u, 3000u}) {
    const auto hashes = random_hashes(engine, n);
    const auto signature = hasher.signature(hashes);
    ASSERT_EQ(signature.size(), 77u);
    for (std::size_t place = 0; place < 77; ++place) {
      std::uint32_t least = ~0u;
      for (const std::uint64_t hash : hashes)
        least = std::min(least, static_cast<std::uint32_t>((random_word(key, 0, place) | 1) * (hash >> 32) +
                                                           random_word(key, 1, place)));
      EXPECT_EQ(signature[place], least) << place << " of " << n;
    }
  }
}

TEST(MinHash, AgreesAtAPlaceWithTheProbabilityOfTheJaccardSimilarity) {
  std::mt19937_64 engine(2);
  const MinHasher hasher({.bands = 1, .rows = 128}, 1);
  for (const std::size_t common : {10u, 50u, 70u, 90u}) {
    std::int64_t equal = 0, places = 0;
    for (int pair = 0; pair < 200; ++pair) {  // sets of `common` and (100 - common) / 2 each: J = common / 100
      auto a = random_hashes(engine, common), b = a;
      for (const std::uint64_t hash : random_hashes(engine, (100 - common) / 2)) a.push_back(hash);
      for (const std::uint64_t hash : random_hashes(engine, (100 - common) / 2)) b.push_back(hash);
      const auto x = hasher.signature(a), y = hasher.signature(b);
      for (std::size_t i = 0; i < x.size(); ++i) equal += x[i] == y[i] ? 1 : 0;
      places += 128;
    }
    const double j = static_cast<double>(common) / 100, n = static_cast<double>(places);
    EXPECT_NEAR(static_cast<double>(equal) / n, j, 5 * std::sqrt(j * (1 - j) / n));
  }
}

TEST(MinHash, GivesBandsEqualKeysExactlyWhereAllTheirPlacesAgree) {
  std::mt19937_64 engine(3);
  const MinHasher hasher({.bands = 30, .rows = 2}, 1);
  int equal = 0, different = 0;
  for (int pair = 0; pair < 50; ++pair) {
    auto a = random_hashes(engine, 40), b = a;
    for (int i = 0; i < 10; ++i) b[static_cast<std::size_t>(i)] = engine();
    std::vector<std::uint32_t> keys_a(30), keys_b(30);
    hasher.band_keys(a, keys_a);
    hasher.band_keys(b, keys_b);
    const auto x = hasher.signature(a), y = hasher.signature(b);
    for (std::size_t band = 0; band < 30; ++band) {
      const bool same = x[2 * band] == y[2 * band] && x[2 * band + 1] == y[2 * band + 1];
      EXPECT_EQ(keys_a[band] == keys_b[band], same);
      ++(same ? equal : different);
    }
  }
  EXPECT_GT(equal, 100);
  EXPECT_GT(different, 100);
}

TEST(Bands, AreThoseWithMostRowsThatStillFindTheThreshold) {
  for (const int hashes : {16, 100, 128, 256})
    for (const double threshold : {0.3, 0.5, 0.7, 0.8, 0.95, 1.0}) {
      const Bands bands = choose_bands(hashes, threshold);
      EXPECT_LE(bands.bands * bands.rows, hashes);
      for (int rows = bands.rows + 1; rows <= hashes; ++rows)
        EXPECT_LT((Bands{hashes / rows, rows}).recall(threshold), 0.95) << hashes << " " << threshold;
      if (bands.rows > 1) {
        EXPECT_GE(bands.recall(threshold), 0.95);
      }
    }
  const Bands usual = choose_bands(128, 0.7);
  EXPECT_EQ(usual.bands, 25);
  EXPECT_EQ(usual.rows, 5);
  EXPECT_GT(usual.recall(0.8), 0.9999);
}

TEST(Bands, RefuseWhatIsNoThresholdOrTooMany) {
  EXPECT_THROW(choose_bands(0, 0.7), ConfigError);
  EXPECT_THROW(choose_bands(5000, 0.7), ConfigError);
  EXPECT_THROW(choose_bands(128, 0), ConfigError);
  EXPECT_THROW(choose_bands(128, std::nan("")), ConfigError);
  EXPECT_THROW(MinHasher({.bands = 100, .rows = 100}, 1), ConfigError);
  EXPECT_THROW(MinHasher({.bands = 0, .rows = 5}, 1), ConfigError);
}

}  // namespace
}  // namespace megatron::corpus
