#include "megatron/charts/flame_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megatron::charts {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(FlameChart, GivesEachPartItsShareBelowItsWholeTheLargestFirst) {
  // 1,100 pixels from 20 on, rows of 22 from 52 on.
  const std::string svg = draw_flame(
      "step", {"step", 200, "200 ms", {{"optimizer", 50, "", {}}, {"forward", 100, "", {{"a<b", 25, "", {}}}}}});
  EXPECT_THAT(svg, HasSubstr("<rect class=\"c0\" x=\"20\" y=\"52\" width=\"1100\" height=\"21\">"));
  EXPECT_THAT(svg,
              HasSubstr("<rect class=\"c1\" x=\"20\" y=\"74\" width=\"550\" height=\"21\"><title>forward</title>"));
  EXPECT_THAT(svg, HasSubstr("<rect class=\"c1\" x=\"570\" y=\"74\" width=\"275\" height=\"21\"><title>optimizer"));
  EXPECT_THAT(svg,
              HasSubstr("<rect class=\"c2\" x=\"20\" y=\"96\" width=\"137.5\" height=\"21\"><title>a&lt;b</title>"));
  EXPECT_THAT(svg, HasSubstr("step, 200 ms"));
}

TEST(FlameChart, LeavesOutWhatIsTooThinToBeSeen) {
  const std::string svg = draw_flame("step", {"step", 1e6, "", {{"thin", 1, "", {}}, {"none", 0, "", {}}}});
  EXPECT_THAT(svg, Not(HasSubstr("thin")));
  EXPECT_THAT(svg, Not(HasSubstr("none")));
  EXPECT_THAT(draw_flame("nothing", {"step", 0, "", {{"part", 0, "", {}}}}), HasSubstr("nothing"));
}

}  // namespace
}  // namespace megatron::charts
