#include "megatron/data/index/numpy_random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace megatron::data {
namespace {

// Values of numpy 1.26's RandomState(1234).
TEST(NumpyRandom, DrawsNumpysNumbers) {
  NumpyRandom random(1234);
  EXPECT_DOUBLE_EQ(random.random(), 0.1915194503788923);
  EXPECT_DOUBLE_EQ(random.random(), 0.6221087710398319);
  EXPECT_DOUBLE_EQ(random.random(), 0.4377277390071145);
}

TEST(NumpyRandom, ShufflesAsNumpyWhateverTheElementType) {
  const std::vector<int> expected = {7, 2, 9, 1, 0, 8, 4, 5, 6, 3};
  std::vector<std::int32_t> a(10);
  std::iota(a.begin(), a.end(), 0);
  std::vector<std::int64_t> b(a.begin(), a.end());
  NumpyRandom(1234).shuffle(std::span(a));
  NumpyRandom(1234).shuffle(std::span(b));
  EXPECT_TRUE(std::equal(a.begin(), a.end(), expected.begin()));
  EXPECT_TRUE(std::equal(b.begin(), b.end(), expected.begin()));
}

TEST(NumpyRandom, TakesTwoWordsForRangesBeyond32Bits) {
  // The high word first, both under the mask: checked against the words themselves.
  NumpyRandom words(7), random(7);
  const std::uint64_t top = (std::uint64_t{1} << 40) - 1;
  const std::uint64_t high = words.word(), low = words.word();
  EXPECT_EQ(random.below_or_at(top), (high << 32 | low) & top);
}

TEST(NumpyRandom, DrawsNothingForARangeOfOne) {
  NumpyRandom a(3), b(3);
  EXPECT_EQ(a.below_or_at(0), 0u);
  EXPECT_EQ(a.word(), b.word());
}

// Values of numpy 2.4's RandomState(1234).
TEST(NumpyRandom, DrawsNumpysIntegersChoicesAndGeometricNumbers) {
  const auto draw = [](std::size_t count, const auto& one) {
    NumpyRandom random(1234);
    std::vector<std::int64_t> values;
    while (values.size() < count) values.push_back(static_cast<std::int64_t>(one(random)));
    return values;
  };
  EXPECT_EQ(draw(12, [](NumpyRandom& random) { return random.integer(3, 10); }),
            (std::vector<std::int64_t>{6, 9, 8, 7, 7, 3, 4, 4, 4, 5, 9, 6}));
  EXPECT_EQ(draw(6, [](NumpyRandom& random) { return random.integer(0, 30524); }),
            (std::vector<std::int64_t>{27439, 25299, 1318, 23605, 27852, 23924}));
  EXPECT_EQ(draw(12, [](NumpyRandom& random) { return random.geometric(0.2); }),
            (std::vector<std::int64_t>{1, 5, 3, 7, 7, 2, 2, 8, 15, 10, 2, 4}));
  const std::vector<double> sums = {6.0 / 11, 9.0 / 11, 1};  // of 1, 1/2, 1/3, normalized
  EXPECT_EQ(draw(12, [&](NumpyRandom& random) { return random.choice(sums); }),
            (std::vector<std::int64_t>{0, 1, 0, 1, 1, 0, 0, 1, 2, 2, 0, 0}));
}

}  // namespace
}  // namespace megatron::data
