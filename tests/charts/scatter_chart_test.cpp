#include "megatron/charts/scatter_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace megatron::charts {
namespace {

using testing::HasSubstr;

TEST(ScatterChart, PutsPointsBetweenZeroAndATwentiethAboveTheLargest) {
  // The plot is 720 by 360 pixels from (90, 60).
  const std::string svg = draw_scatter("t", "GB", "tokens/s", {{100, 10, "a<b", true}, {0, 0, "", false}},
                                       {{100, 10, "", true}, {0, 0, "", true}});
  EXPECT_THAT(svg, HasSubstr("<circle class=\"p\" cx=\"775.71\" cy=\"77.14\" r=\"4\"><title>a&lt;b</title>"));
  EXPECT_THAT(svg, HasSubstr("<circle class=\"q\" cx=\"90\" cy=\"420\""));
  EXPECT_THAT(svg, HasSubstr("d=\"M90 420H775.71V77.14\""));
  EXPECT_THROW(draw_scatter("t", "x", "y", {}, {}), std::logic_error);
}

}  // namespace
}  // namespace megatron::charts
