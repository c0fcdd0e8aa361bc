#include "megatron/charts/flow_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace megatron::charts {
namespace {

using testing::HasSubstr;

TEST(FlowChart, HasAStripeForEachKindThatGoesBetweenTwoPlaces) {
  FlowChart chart{.title = "a<b", .kinds = {"x", "y"}, .from = "from", .to = "to", .places = {"0", "1"}};
  chart.sums = {{"all", {4, 0}, {"four", "-"}}};
  chart.flows = {{0, 1, 0, 1, "0 to 1: x"}, {0, 1, 1, 100, "0 to 1: y"}, {1, 1, 0, 10, "1 & 1"}};
  const std::string svg = draw_flows(chart);
  EXPECT_THAT(svg, HasSubstr("a&lt;b"));
  // Cells of 26 pixels, halves of them; depths by the logarithm from 1/4 to 1.
  EXPECT_THAT(svg, HasSubstr("width=\"13\" height=\"26\" fill-opacity=\"0.25\"><title>0 to 1: x</title>"));
  EXPECT_THAT(svg, HasSubstr("width=\"13\" height=\"26\" fill-opacity=\"1.00\"><title>0 to 1: y</title>"));
  EXPECT_THAT(svg, HasSubstr("width=\"26\" height=\"26\" fill-opacity=\"0.62\"><title>1 &amp; 1</title>"));
  EXPECT_THAT(svg, HasSubstr(">four</text>"));
  chart.flows[0].to = 2;
  EXPECT_THROW(draw_flows(chart), std::logic_error);
  chart.flows[0] = {0, 1, 2, 1, ""};
  EXPECT_THROW(draw_flows(chart), std::logic_error);
}

}  // namespace
}  // namespace megatron::charts
