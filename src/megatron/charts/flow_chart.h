#pragma once
#include <cstddef>
#include <string>
#include <vector>

// Who sends whom how much, as a picture.
namespace megatron::charts {

/// What goes from one place to another, or from a place to itself.
struct Flow {
  std::size_t from = 0, to = 0, kind = 0;
  double value = 0;  ///< > 0
  std::string text;  ///< a viewer shows it under the pointer
};

/// A bar for each kind, of what all flows of some sort are together.
struct FlowSum {
  std::string heading = {};
  std::vector<double> values = {};      ///< by kind, >= 0; bars of all sums share a scale
  std::vector<std::string> texts = {};  ///< behind the bars
};

struct FlowChart {
  std::string title = {};
  std::vector<std::string> kinds = {};  ///< at most 8
  std::string from = {}, to = {};       ///< what the axes say
  std::vector<std::string> places = {};
  std::size_t block = 0;  ///< so many places after one another are marked as one; 0: none
  std::string note = {};  ///< below
  std::vector<FlowSum> sums = {};
  std::vector<Flow> flows = {};
};

/// One SVG file that needs no other: the sums side by side, a line for each kind, and below them a table with a cell
/// for each pair of places, in which each kind that goes from the row's place to the column's has a stripe, the deeper
/// by the logarithm of its value. std::logic_error for kinds or places that there are not.
std::string draw_flows(const FlowChart& chart);

}  // namespace megatron::charts
