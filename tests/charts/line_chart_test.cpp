#include "megatron/charts/line_chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace megatron::charts {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++found;
  return found;
}

TEST(AxisTicks, AreRoundNumbersWithinTheAxis) {
  EXPECT_EQ(axis_ticks(0, 600, 8), (std::vector<double>{0, 100, 200, 300, 400, 500, 600}));
  EXPECT_EQ(axis_ticks(4.1, 8.3, 8), (std::vector<double>{5, 6, 7, 8}));
  EXPECT_EQ(axis_ticks(-30, 45, 4), (std::vector<double>{-20, 0, 20, 40}));
  EXPECT_EQ(axis_ticks(0, 1, 2), (std::vector<double>{0, 0.5, 1}));
  for (double high = 1e-6; high < 1e12; high *= 1.7) {
    const auto ticks = axis_ticks(0, high, 8);
    EXPECT_GE(ticks.size(), 3U) << high;
    EXPECT_LE(ticks.size(), 9U) << high;
    EXPECT_LE(ticks.back(), high * (1 + 1e-9)) << high;
  }
}

TEST(AxisTicks, EndWhereNumbersAreTooLargeToBeToldApart) { EXPECT_LE(axis_ticks(1e16, 1e16 + 2, 8).size(), 9U); }

TEST(SmoothedCurve, IsTheMeanOfTheLastFinitePoints) {
  const auto curve = smoothed({"run", {{1, 4}, {2, 8}, {3, kNan}, {4, 6}, {5, 1}}}, 2);
  ASSERT_EQ(curve.points.size(), 5U);
  EXPECT_EQ(curve.points[0].second, 4);
  EXPECT_EQ(curve.points[1].second, 6);
  EXPECT_TRUE(std::isnan(curve.points[2].second));
  EXPECT_EQ(curve.points[3].second, 7);
  EXPECT_EQ(curve.points[4].second, 3.5);
}

TEST(DrawnCurves, LieBetweenTheCornersAndHaveGaps) {
  const auto svg =
      draw_curves("norms", "iteration", "loss", {{"a<b", {{0, 10}, {50, kNan}, {100, 2}}}, {"c", {{100, 6}}}});
  // The plot is 720 by 360 pixels from (70, 60): the greatest value at its top, the least at its bottom.
  // A point alone is a line of no length, whose round ends are a dot.
  EXPECT_EQ(count(svg, "d=\"M70 60h0M790 420h0\""), 1U) << svg;
  EXPECT_EQ(count(svg, "d=\"M790 240h0\""), 1U) << svg;
  EXPECT_EQ(count(svg, "stroke-linecap:round"), 1U) << svg;
  EXPECT_EQ(count(svg, ">a&lt;b<"), 1U);
  EXPECT_EQ(count(svg, "nan"), 0U);
}

TEST(DrawnCurves, OfOneValueHaveAnAxis) {
  EXPECT_EQ(count(draw_curves("t", "x", "y", {{"a", {{3, 0}}}}), "d=\"M430 240h0\""), 1U);
}

TEST(DrawnCurves, MarkNoPointThatALineReaches) {
  const auto svg = draw_curves("t", "x", "y", {{"a", {{0, 0}, {1, 1}, {2, kNan}, {3, 0}, {4, 1}}}});
  EXPECT_EQ(count(svg, "d=\"M70 420L250 60M610 420L790 60\""), 1U) << svg;
}

TEST(DrawnCurves, OfTheLargestNumbersLieBetweenTheCornersToo) {
  constexpr double kMax = std::numeric_limits<double>::max();
  const auto svg = draw_curves("t", "x", "y", {{"a", {{0, -kMax}, {1, kMax}, {2, 0}}}});
  EXPECT_EQ(count(svg, "d=\"M70 420L430 60L790 240\""), 1U) << svg;
  for (const double value : {kMax, -kMax, 1.7e308}) {
    const auto one = draw_curves("t", "x", "y", {{"a", {{1, value}}}});
    EXPECT_EQ(count(one, "nan") + count(one, "inf"), 0U) << one;
  }
  EXPECT_EQ(count(svg, "nan") + count(svg, "inf"), 0U) << svg;
  EXPECT_EQ(smoothed({"a", {{0, kMax}, {1, kMax}}}, 2).points[1].second, kMax);
}

TEST(DrawnCurves, NeedAFinitePointAndEightColoursAtMost) {
  EXPECT_THROW(draw_curves("t", "x", "y", {{"a", {{3, kNan}}}}), std::logic_error);
  EXPECT_THROW(draw_curves("t", "x", "y", std::vector<Curve>(9, {"a", {{1, 1}}})), std::logic_error);
}

}  // namespace
}  // namespace megatron::charts
