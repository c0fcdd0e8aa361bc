#include "megatron/charts/scatter_chart.h"

#include <algorithm>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/charts/line_chart.h"
#include "megatron/charts/svg.h"

namespace megatron::charts {

std::string draw_scatter(const std::string& title, const std::string& x_name, const std::string& y_name,
                         const std::vector<Point>& points, std::vector<Point> frontier) {
  if (points.empty()) throw std::logic_error("draw_scatter: a point");
  constexpr double kLeft = 90, kTop = 60, kWidth = 720, kHeight = 360;
  double right = 0, top = 0;
  for (const Point& point : points) {
    right = std::max(right, point.x);
    top = std::max(top, point.y);
  }
  right = right > 0 ? 1.05 * right : 1;
  top = top > 0 ? 1.05 * top : 1;
  const auto x_of = [&](double x) { return kLeft + kWidth * x / right; };
  const auto y_of = [&](double y) { return kTop + kHeight * (1 - y / top); };
  std::string body;
  for (const double x : axis_ticks(0, right, 8)) {
    body += svg::text_at(x_of(x), kTop + kHeight + 18, "m", fmt::format("{:.4g}", x));
    body +=
        concat("<path class=\"g\" d=\"M", svg::px(x_of(x)), " ", svg::px(kTop), "V", svg::px(kTop + kHeight), "\"/>\n");
  }
  for (const double y : axis_ticks(0, top, 8)) {
    body += svg::text_at(kLeft - 6, y_of(y) + 4, "e", fmt::format("{:.4g}", y));
    body += concat("<path class=\"g\" d=\"M", svg::px(kLeft), " ", svg::px(y_of(y)), "H", svg::px(kLeft + kWidth),
                   "\"/>\n");
  }
  body += svg::text_at(kLeft + kWidth / 2, kTop + kHeight + 40, "m", x_name);
  body += svg::text_at(kLeft, kTop - 10, "", y_name);
  for (const Point& point : points)
    body += concat("<circle class=\"", point.strong ? "p" : "q", "\" cx=\"", svg::px(x_of(point.x)), "\" cy=\"",
                   svg::px(y_of(point.y)), "\" r=\"4\"><title>", svg::escaped(point.text), "</title></circle>\n");
  std::ranges::sort(frontier, {}, &Point::x);
  std::string path;
  for (const Point& point : frontier)
    path += path.empty() ? concat("M", svg::px(x_of(point.x)), " ", svg::px(y_of(point.y)))
                         : concat("H", svg::px(x_of(point.x)), "V", svg::px(y_of(point.y)));
  if (!path.empty()) body += concat("<path class=\"f\" d=\"", path, "\"/>\n");
  const std::string style =
      "<style>text{font:11px "
      "sans-serif;fill:#222}.h{font-size:16px;font-weight:bold}.d{fill:#fff}.m{text-anchor:middle}"
      ".e{text-anchor:end}.g{stroke:#ddd}.p{fill:#4477aa}.q{fill:#ccc}.f{fill:none;stroke:#cc3311;stroke-width:2}</"
      "style>\n";
  return svg::document(kLeft + kWidth + 40, kTop + kHeight + 60, style, title, kLeft, body);
}

}  // namespace megatron::charts
