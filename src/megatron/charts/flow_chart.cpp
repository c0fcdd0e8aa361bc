#include "megatron/charts/flow_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/charts/svg.h"

namespace megatron::charts {
namespace {

// In pixels.
constexpr double kFlowLeft = 30, kSumTop = 52, kSumLine = 17, kSumBar = 110, kSumGap = 26, kPairsWidth = 640,
                 kLargestCell = 26, kTextSize = 11;
constexpr double kLeastDepth = 0.25;  ///< of the smallest value

constexpr std::array<const char*, 8> kFlowColors = {"#4477aa", "#66ccee", "#228833", "#ccbb44",
                                                    "#ee6677", "#aa3377", "#555555", "#ee8866"};

double number(std::size_t count) { return static_cast<double>(count); }

void check_flows(const FlowChart& chart) {
  bool right = chart.kinds.size() <= kFlowColors.size() && !chart.places.empty();
  for (const Flow& flow : chart.flows)
    right = right && flow.kind < chart.kinds.size() && flow.from < chart.places.size() &&
            flow.to < chart.places.size() && flow.value > 0;
  for (const FlowSum& sum : chart.sums)
    right = right && sum.values.size() == chart.kinds.size() && sum.texts.size() == chart.kinds.size();
  if (!right) throw std::logic_error("a chart of flows needs kinds and places that there are");
}

double widest(const std::vector<std::string>& texts) {
  double width = 0;
  for (const std::string& text : texts) width = std::max(width, svg::text_width(text, kTextSize));
  return width;
}

/// A drawn part, and where it ends.
struct DrawnFlows {
  std::string body = {};
  double right = 0, bottom = 0;
};

DrawnFlows draw_sums(const FlowChart& chart) {
  DrawnFlows drawn{.bottom = kSumTop + kSumLine * (number(chart.kinds.size()) + 1)};
  double most = 1e-300, x = kFlowLeft + 18 + widest(chart.kinds) + kSumGap;
  for (const FlowSum& sum : chart.sums)
    for (const double value : sum.values) most = std::max(most, value);
  for (std::size_t kind = 0; kind < chart.kinds.size(); ++kind) {
    const double y = kSumTop + kSumLine * (number(kind) + 1);
    drawn.body += svg::box(kFlowLeft, y - 10, 11, 11, concat("c", kind)) + "/>\n" +
                  svg::text_at(kFlowLeft + 18, y, "", chart.kinds[kind]);
  }
  for (const FlowSum& sum : chart.sums) {
    drawn.body += svg::text_at(x, kSumTop, "s", sum.heading);
    for (std::size_t kind = 0; kind < chart.kinds.size(); ++kind) {
      const double y = kSumTop + kSumLine * (number(kind) + 1), width = kSumBar * sum.values[kind] / most;
      if (width > 0) drawn.body += svg::box(x, y - 10, std::max(width, 1.0), 11, concat("c", kind)) + "/>\n";
      drawn.body +=
          svg::text_at(x + std::max(width, width > 0 ? 1.0 : 0.0) + (width > 0 ? 6 : 0), y, "", sum.texts[kind]);
    }
    x += std::max(kSumBar + 6 + widest(sum.texts), svg::text_width(sum.heading, kTextSize, true)) + kSumGap;
  }
  drawn.right = x - kSumGap;
  return drawn;
}

/// Every so many labels are written: as many as have room `each` in places of `cell`.
std::size_t label_step(double each, double cell) {
  return static_cast<std::size_t>(std::max(1.0, std::ceil(each / cell)));
}

DrawnFlows draw_pairs(const FlowChart& chart, double top) {
  const std::size_t count = chart.places.size();
  const double cell = std::min(kLargestCell, kPairsWidth / number(count)), labels = widest(chart.places);
  const double left = kFlowLeft + std::max(labels, svg::text_width(chart.from, kTextSize)) + 10,
               size = cell * number(count);
  top += 34;
  DrawnFlows drawn{.right = left + size, .bottom = top + size};
  drawn.body += svg::text_at(left, top - 22, "", chart.to) + svg::text_at(left - 8, top - 22, "e", chart.from);
  const std::size_t rows = label_step(kTextSize + 3, cell), columns = label_step(labels + 6, cell);
  for (std::size_t i = 0; i < count; ++i) {
    const double at = (number(i) + 0.5) * cell;
    if (i % rows == 0) drawn.body += svg::text_at(left - 8, top + at + 4, "e", chart.places[i]);
    if (i % columns == 0) drawn.body += svg::text_at(left + at, top - 6, "m", chart.places[i]);
    if (i % columns == 0) drawn.right = std::max(drawn.right, left + at + labels / 2);
  }
  drawn.body += svg::box(left, top, size, size, "g") + "/>\n";
  double least = 0, most = 0;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<const Flow*>> pairs;
  for (const Flow& flow : chart.flows) {
    least = most == 0 ? flow.value : std::min(least, flow.value);
    most = std::max(most, flow.value);
    pairs[{flow.from, flow.to}].push_back(&flow);
  }
  for (const auto& [pair, flows] : pairs) {
    const double width = cell / number(flows.size());
    for (std::size_t i = 0; i < flows.size(); ++i) {
      const double share = most > least ? std::log(flows[i]->value / least) / std::log(most / least) : 1;
      drawn.body += concat(svg::box(left + number(pair.second) * cell + number(i) * width,
                                    top + number(pair.first) * cell, width, cell, concat("c", flows[i]->kind)),
                           " fill-opacity=\"", fmt::format("{:.2f}", kLeastDepth + (1 - kLeastDepth) * share),
                           "\"><title>", svg::escaped(flows[i]->text), "</title></rect>\n");
    }
  }
  const auto lines_at = [&](std::size_t every) {
    std::string path;
    for (std::size_t i = 0; every > 0 && i <= count; i += every)
      path += concat("M", svg::px(left + number(i) * cell), " ", svg::px(top), "v", svg::px(size), "M", svg::px(left),
                     " ", svg::px(top + number(i) * cell), "h", svg::px(size));
    return path;
  };
  drawn.body += "<path class=\"k\" d=\"" + lines_at(1) + "\"/>\n";
  if (chart.block > 1) drawn.body += "<path class=\"b\" d=\"" + lines_at(chart.block) + "\"/>\n";
  return drawn;
}

}  // namespace

std::string draw_flows(const FlowChart& chart) {
  check_flows(chart);
  const DrawnFlows sums = draw_sums(chart), pairs = draw_pairs(chart, sums.bottom + 18);
  std::string style =
      "<style>text{font:11px sans-serif;fill:#222}.h{font-size:16px;font-weight:bold}.s{font-weight:bold}"
      ".m{text-anchor:middle}.e{text-anchor:end}.d{fill:#fff}.g{fill:#f7f7f7}.k{stroke:#ddd;stroke-width:.5;fill:none}"
      ".b{stroke:#444;stroke-width:1;fill:none}";
  for (std::size_t kind = 0; kind < chart.kinds.size(); ++kind)
    style += concat(".c", kind, "{fill:", kFlowColors[kind], "}");
  const double note = pairs.bottom + 24;
  const double width =
      std::max({sums.right, pairs.right, kFlowLeft + svg::text_width(chart.note, kTextSize)}) + kFlowLeft;
  return svg::document(width, note + 16, style + "</style>\n", chart.title, kFlowLeft,
                       sums.body + pairs.body + svg::text_at(kFlowLeft, note, "", chart.note));
}

}  // namespace megatron::charts
