#include "megatron/base/text/nearest.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

const std::vector<std::string> kNames = {"tp", "dp", "num-layers", "hidden-size", "train"};

TEST(NearestName, FindsMisspellings) {
  EXPECT_EQ(nearest_name("num-layer", kNames), "num-layers");    // one missing
  EXPECT_EQ(nearest_name("num-layerss", kNames), "num-layers");  // one too many
  EXPECT_EQ(nearest_name("hiden-szie", kNames), "hidden-size");  // one missing, two swapped
  EXPECT_EQ(nearest_name("tpp", kNames), "tp");
  EXPECT_EQ(nearest_name("trian", kNames), "train");
  EXPECT_EQ(nearest_name("train", kNames), "train");
}

TEST(NearestName, FindsNothingWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("pp", kNames), "");  // as near to tp as to dp: no misspelling of either
  EXPECT_EQ(nearest_name("optimizer", kNames), "");
  EXPECT_EQ(nearest_name("", kNames), "");
  EXPECT_EQ(nearest_name(std::string(1000, 'a'), kNames), "");
  EXPECT_EQ(nearest_name("x", {}), "");
}

}  // namespace
}  // namespace megatron
