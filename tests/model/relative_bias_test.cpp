#include "megatron/model/relative_bias.h"

#include <gtest/gtest.h>

#include <vector>

namespace megatron::model {
namespace {

/// The distances at which the bucket is another than that of the distance before, from `first` on.
std::vector<std::int64_t> steps(bool both_ways, std::int64_t first, std::int64_t last, std::int64_t buckets = 32,
                                std::int64_t most = 128) {
  std::vector<std::int64_t> at;
  for (std::int64_t distance = first + 1; distance <= last; ++distance)
    if (relative_bucket(distance, both_ways, buckets, most) != relative_bucket(distance - 1, both_ways, buckets, most))
      at.push_back(distance);
  return at;
}

// The steps of T5Attention._relative_position_bucket in transformers 5.
TEST(RelativeBucket, IsThatOfTransformers) {
  EXPECT_EQ(steps(true, 0, 300), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91}));
  EXPECT_EQ(steps(true, -300, 0),
            (std::vector<std::int64_t>{-90, -63, -45, -31, -22, -15, -11, -7, -6, -5, -4, -3, -2, -1, 0}));
  EXPECT_EQ(steps(false, -300, 300),
            (std::vector<std::int64_t>{-112, -98, -86, -76, -66, -58, -51, -45, -39, -34, -30, -26, -23, -20, -18, -15,
                                       -14,  -13, -12, -11, -10, -9,  -8,  -7,  -6,  -5,  -4,  -3,  -2,  -1,  0}));
  EXPECT_EQ(
      steps(true, -1200, 1200, 64, 1000),
      (std::vector<std::int64_t>{-772, -596, -460, -355, -274, -212, -163, -126, -97, -75, -58, -44, -34, -26, -20, -15,
                                 -14,  -13,  -12,  -11,  -10,  -9,   -8,   -7,   -6,  -5,  -4,  -3,  -2,  -1,  0,   1,
                                 2,    3,    4,    5,    6,    7,    8,    9,    10,  11,  12,  13,  14,  15,  16,  21,
                                 27,   35,   45,   59,   76,   98,   127,  164,  213, 275, 356, 461, 597, 773}));
  EXPECT_EQ(relative_bucket(0, true, 32, 128), 0);
  EXPECT_EQ(relative_bucket(1, true, 32, 128), 17);
  EXPECT_EQ(relative_bucket(-1, true, 32, 128), 1);
  EXPECT_EQ(relative_bucket(300, true, 32, 128), 31);
  EXPECT_EQ(relative_bucket(-300, true, 32, 128), 15);
  EXPECT_EQ(relative_bucket(5, false, 32, 128), 0);
  EXPECT_EQ(relative_bucket(-300, false, 32, 128), 31);
}

}  // namespace
}  // namespace megatron::model
