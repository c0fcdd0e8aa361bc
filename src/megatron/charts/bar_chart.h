#pragma once
#include <string>
#include <vector>

// Columns that compare a few series, as a picture.
namespace megatron::charts {

/// One place on the horizontal axis: a column for each series.
struct BarCluster {
  std::string label;               ///< below; '\n' begins a new line
  std::vector<double> values;      ///< by series, >= 0
  std::vector<std::string> texts;  ///< above each column
};

/// Clusters whose values are of one kind: they share a scale.
struct BarGroup {
  std::string heading;
  std::vector<BarCluster> clusters;
};

/// One SVG file that needs no other: the groups side by side, at most two series, named in the legend.
std::string draw_bars(const std::string& title, const std::vector<std::string>& series,
                      const std::vector<BarGroup>& groups);

}  // namespace megatron::charts
