#include "megatron/charts/bar_chart.h"

#include <algorithm>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/charts/svg.h"

namespace megatron::charts {
namespace {

namespace svg = svg;

// In pixels.
constexpr double kLeft = 30, kTop = 96, kHeight = 210, kColumn = 30, kGap = 12, kGroupGap = 44, kLine = 13;
constexpr double kWidest = 960;    // groups that would go further begin a new row
constexpr double kLongText = 150;  // longer labels are cut
constexpr double kLabelSize = 11, kNumberSize = 10, kHeadingSize = 12;

std::string style() {
  return "<style>text{font:11px sans-serif;fill:#222}.h{font-size:16px;font-weight:bold}.s{font-weight:bold;"
         "font-size:12px}.m{text-anchor:middle}.n{font-size:10px;text-anchor:middle}.d{fill:#fff}.x{stroke:#444}"
         ".c0{fill:#a9a9a9}.c1{fill:#4477aa}</style>\n";
}

std::vector<std::string> lines_of(const std::string& label) {
  std::vector<std::string> lines;
  std::istringstream in(label);
  for (std::string line; std::getline(in, line);) lines.push_back(svg::shortened(line, kLongText, kLabelSize));
  return lines;
}

/// Clusters of a group are alike: as wide as the longest of its labels and numbers needs.
struct Widths {
  Widths(const BarGroup& group, std::size_t series) {
    for (const BarCluster& each : group.clusters) {
      for (const std::string& text : each.texts) column = std::max(column, svg::text_width(text, kNumberSize) + 4);
      for (const std::string& line : lines_of(each.label)) label = std::max(label, svg::text_width(line, kLabelSize));
    }
    columns = static_cast<double>(series) * column;
    cluster = std::max(columns, label) + kGap;
    bars = static_cast<double>(group.clusters.size()) * cluster;
    group_width = std::max(bars, svg::text_width(group.heading, kHeadingSize, true));
  }

  double column = kColumn, label = 0;
  double columns = 0;  ///< of one cluster
  double cluster = 0;  ///< with the gap to the next
  double bars = 0;
  double group_width = 0;
};

/// `x`: where the cluster begins, `bottom`: of the columns.
std::string cluster_at(double x, double bottom, const BarCluster& cluster, const Widths& widths, double most) {
  std::string out;
  const double middle = x + (widths.cluster - kGap) / 2, first = middle - widths.columns / 2;
  for (std::size_t i = 0; i < cluster.values.size(); ++i) {
    const double left = first + static_cast<double>(i) * widths.column, height = kHeight * cluster.values[i] / most;
    const double top = bottom - height;
    out += svg::box(left + 1, top, widths.column - 2, height, concat("c", i)) + "/>\n";
    out += svg::text_at(left + widths.column / 2, top - 4, "n", cluster.texts[i]);
  }
  double y = bottom + 16;
  for (const std::string& line : lines_of(cluster.label)) {
    out += svg::text_at(middle, y, "m", line);
    y += kLine;
  }
  return out;
}

double label_lines(const std::vector<BarGroup>& groups) {
  std::size_t most = 1;
  for (const BarGroup& group : groups)
    for (const BarCluster& cluster : group.clusters) most = std::max(most, lines_of(cluster.label).size());
  return static_cast<double>(most);
}

}  // namespace

std::string draw_bars(const std::string& title, const std::vector<std::string>& series,
                      const std::vector<BarGroup>& groups) {
  std::string body;
  double x = kLeft, right = 0;
  for (std::size_t i = 0; i < series.size(); ++i) {
    body += svg::box(x, 39, 12, 12, concat("c", i)) + "/>\n" + svg::text_at(x + 18, 49, "", series[i]);
    right = x + 18 + svg::text_width(series[i], kLabelSize);
    x = std::max(x + 130, right + 20);
  }
  x = kLeft;
  const double below = kLine * label_lines(groups) + 16;
  double bottom = kTop + kHeight;
  for (const BarGroup& group : groups) {
    double most = 1e-300;
    for (const BarCluster& cluster : group.clusters)
      for (const double value : cluster.values) most = std::max(most, value);
    const Widths widths(group, series.size());
    if (x > kLeft && x + widths.group_width > kWidest) {
      x = kLeft;
      bottom += kHeight + below + 68;
    }
    body += svg::text_at(x, bottom - kHeight - 22, "s", group.heading);
    body +=
        concat("<path class=\"x\" d=\"M", svg::px(x - 6), " ", svg::px(bottom), "h", svg::px(widths.bars), "\"/>\n");
    double at = x;
    for (const BarCluster& cluster : group.clusters) {
      body += cluster_at(at, bottom, cluster, widths, most);
      at += widths.cluster;
    }
    x += widths.group_width;
    right = std::max(right, x);
    x += kGroupGap;
  }
  return svg::document(std::max(right + 10, kWidest / 2), bottom + below + 14, style(), title, kLeft, body);
}

}  // namespace megatron::charts
