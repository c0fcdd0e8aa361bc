#pragma once
#include <string>
#include <vector>

namespace megatron::charts {

/// One thing with two measures, >= 0 and finite.
struct Point {
  double x = 0, y = 0;
  std::string text;    ///< what a viewer shows of it under the pointer
  bool strong = true;  ///< else pale
};

/// One SVG file that needs no other: the points, from zero on both axes, and a line of steps through `frontier`, those
/// that no other beats. At least one point: std::logic_error else.
std::string draw_scatter(const std::string& title, const std::string& x_name, const std::string& y_name,
                         const std::vector<Point>& points, std::vector<Point> frontier);

}  // namespace megatron::charts
