#pragma once
#include <string>
#include <vector>

namespace megatron::charts {

/// What the values of a heat map are of.
struct HeatMapNames {
  std::string title;
  std::string rows, columns;        ///< what the axes count
  std::vector<std::string> labels;  ///< of the rows, as many as there are
};

/// One SVG file that needs no other: a cell for each value [row][column], finite and >= 0, of rows of equal lengths. A
/// value of 1 is white; less is blue and more is red, the deeper by its logarithm, as deep as can be at 1/4 and 4. A
/// viewer shows the value under the pointer. std::logic_error without values or for rows that differ.
std::string draw_heat_map(const HeatMapNames& names, const std::vector<std::vector<double>>& values);

}  // namespace megatron::charts
