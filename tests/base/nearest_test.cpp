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

TEST(Listed, JoinsWords) {
  EXPECT_EQ(listed({}), "");
  EXPECT_EQ(listed({"a"}), "a");
  EXPECT_EQ(listed({"a", "b"}, " and "), "a and b");
  EXPECT_EQ(listed({"a", "b", "c"}), "a, b or c");
}

TEST(NotAChoice, ProposesTheNearestOrTheOtherWay) {
  const std::vector<std::string> colors = {"red", "green"};
  EXPECT_EQ(not_a_choice("a color", "gren", colors, "--color", "--color red"),
            "a color must be one of red, green.\n  got:  'gren'\n  fix:  --color green");
  EXPECT_EQ(not_a_choice("a color", "x", colors, "--color", "leave it out"),
            "a color must be one of red, green.\n  got:  'x'\n  fix:  leave it out");
}

}  // namespace
}  // namespace megatron
