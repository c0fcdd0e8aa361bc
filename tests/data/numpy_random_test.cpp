#include "megatron/data/numpy_random.h"

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

}  // namespace
}  // namespace megatron::data
