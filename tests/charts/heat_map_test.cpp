#include "megatron/charts/heat_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace megatron::charts {
namespace {

using testing::HasSubstr;

TEST(HeatMap, IsWhiteAtOneAndDeepestAtAQuarterAndAtFour) {
  const HeatMapNames names{.title = "a<b", .rows = "layer", .columns = "expert", .labels = {"3", "5"}};
  const std::string svg = draw_heat_map(names, {{1, 4, 9}, {0.25, 0, 2}});
  EXPECT_THAT(svg, HasSubstr("a&lt;b"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#ffffff\"><title>layer 3, expert 0: 1.00</title>"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#b2182b\"><title>layer 3, expert 1: 4.00</title>"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#b2182b\"><title>layer 3, expert 2: 9.00</title>"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#2166ac\"><title>layer 5, expert 0: 0.25</title>"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#2166ac\"><title>layer 5, expert 1: 0.00</title>"));
  // Half way by its logarithm: (255 + 178) / 2, (255 + 24) / 2, (255 + 43) / 2.
  EXPECT_THAT(svg, HasSubstr("fill=\"#d98c95\"><title>layer 5, expert 2: 2.00</title>"));
  EXPECT_THROW(draw_heat_map(names, {{1}, {1, 2}}), std::logic_error);
  EXPECT_THROW(draw_heat_map(names, {}), std::logic_error);
}

}  // namespace
}  // namespace megatron::charts
