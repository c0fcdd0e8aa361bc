#include "megatron/plan/bar_chart.h"

#include <algorithm>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/schedule/svg.h"

namespace megatron::plan {
namespace {

namespace svg = schedule::svg;

// In pixels.
constexpr double kLeft = 30, kTop = 96, kHeight = 210, kColumn = 30, kClusterGap = 20, kGroupGap = 44, kLine = 13,
                 kRow = kHeight + 110;
constexpr double kWidest = 960;  // groups that would go further begin a new row

std::string style() {
  return "<style>text{font:11px sans-serif;fill:#222}.h{font-size:16px;font-weight:bold}.s{font-weight:bold;"
         "font-size:12px}.m{text-anchor:middle}.n{font-size:10px;text-anchor:middle}.d{fill:#fff}.x{stroke:#444}"
         ".c0{fill:#a9a9a9}.c1{fill:#4477aa}</style>\n";
}

double width_of(const BarGroup& group, std::size_t series) {
  return static_cast<double>(group.clusters.size()) * (static_cast<double>(series) * kColumn + kClusterGap);
}

std::string lines_at(double x, double y, const std::string& text) {
  std::istringstream lines(text);
  std::string out, line;
  for (; std::getline(lines, line); y += kLine) out += svg::text_at(x, y, "m", line);
  return out;
}

/// `bottom`: of the columns.
std::string cluster_at(double x, double bottom, const BarCluster& cluster, double most) {
  std::string out;
  for (std::size_t i = 0; i < cluster.values.size(); ++i) {
    const double left = x + static_cast<double>(i) * kColumn, height = kHeight * cluster.values[i] / most;
    const double top = bottom - height;
    out += svg::box(left, top, kColumn - 2, height, concat("c", i)) + "/>\n";
    out += svg::text_at(left + kColumn / 2 - 1, top - 4, "n", cluster.texts[i]);
  }
  const double middle = x + static_cast<double>(cluster.values.size()) * kColumn / 2 - 1;
  return out + lines_at(middle, bottom + 16, cluster.label);
}

}  // namespace

std::string draw_bars(const std::string& title, const std::vector<std::string>& series,
                      const std::vector<BarGroup>& groups) {
  std::string body;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const double x = kLeft + 130 * static_cast<double>(i);
    body += svg::box(x, 39, 12, 12, concat("c", i)) + "/>\n" + svg::text_at(x + 18, 49, "", series[i]);
  }
  double x = kLeft, bottom = kTop + kHeight, right = 0;
  for (const BarGroup& group : groups) {
    double most = 1e-300;
    for (const BarCluster& cluster : group.clusters)
      for (const double value : cluster.values) most = std::max(most, value);
    const double width = width_of(group, series.size());
    if (x > kLeft && x + width > kWidest) {
      x = kLeft;
      bottom += kRow;
    }
    body += svg::text_at(x, bottom - kHeight - 22, "s", group.heading);
    body += concat("<path class=\"x\" d=\"M", svg::px(x - 6), " ", svg::px(bottom), "h", svg::px(width), "\"/>\n");
    for (const BarCluster& cluster : group.clusters) {
      body += cluster_at(x, bottom, cluster, most);
      x += static_cast<double>(series.size()) * kColumn + kClusterGap;
    }
    right = std::max(right, x);
    x += kGroupGap;
  }
  return svg::document(std::max(right, kWidest / 2), bottom + 56, style(), title, kLeft, body);
}

}  // namespace megatron::plan
