#pragma once
#include <string>
#include <vector>

namespace megatron::charts {

/// A part of a whole, made of parts itself.
struct FlameBox {
  std::string label;
  double value = 0;  ///< >= 0, what the parts have in all at least; the rest is its own
  std::string text;  ///< behind the label, and in what a viewer shows of it under the pointer
  std::vector<FlameBox> parts = {};
};

/// One SVG file that needs no other (Gregg 2016, "The Flame Graph", upside down): the whole on top as wide as the
/// picture, below each box its parts, as wide as their share of it, the largest first.
std::string draw_flame(const std::string& title, const FlameBox& whole);

}  // namespace megatron::charts
