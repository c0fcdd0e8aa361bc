#include "megatron/charts/heat_map.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/charts/svg.h"

namespace megatron::charts {
namespace {

// In pixels.
constexpr double kMapLeft = 70, kMapTop = 70, kMapWidth = 720, kMaxCell = 28, kMinCell = 3, kMaxRow = 22;
constexpr double kMaxRatio = 4;  // of value and of its reciprocal

constexpr svg::Rgb kWhite{255, 255, 255}, kMore{178, 24, 43}, kLess{33, 102, 172};

svg::Rgb color_of(double value) {
  const double depth = std::clamp(std::log(std::max(value, 1e-9)) / std::log(kMaxRatio), -1.0, 1.0);
  const svg::Rgb& end = depth > 0 ? kMore : kLess;
  svg::Rgb rgb{};
  for (std::size_t i = 0; i < rgb.size(); ++i)
    rgb[i] = static_cast<int>(std::lround(kWhite[i] + std::abs(depth) * (end[i] - kWhite[i])));
  return rgb;
}

std::string cell(double x, double y, double width, double height, double value, const std::string& text) {
  return concat(svg::box(x, y, width, height, "k"), " fill=\"", svg::hex(color_of(value)), "\"><title>",
                svg::escaped(text), "</title></rect>\n");
}

/// From 1/4 to 4, with their numbers below.
std::string color_scale(double x, double y) {
  std::string out;
  constexpr int kSteps = 41;
  constexpr double kStep = 5;
  for (int i = 0; i < kSteps; ++i) {
    const double value = std::pow(kMaxRatio, 2.0 * i / (kSteps - 1) - 1);
    out += cell(x + i * kStep, y, kStep, 12, value, fmt::format("{:.2f}", value));
  }
  for (const auto& [at, text] : {std::pair(0.0, "1/4"), std::pair(0.5, "1"), std::pair(1.0, "4")})
    out += svg::text_at(x + at * kSteps * kStep, y + 25, "m", text);
  return out;
}

}  // namespace

std::string draw_heat_map(const HeatMapNames& names, const std::vector<std::vector<double>>& values) {
  const std::size_t columns = values.empty() ? 0 : values.front().size();
  if (columns == 0 || names.labels.size() != values.size() ||
      std::ranges::any_of(values, [&](const auto& row) { return row.size() != columns; }))
    throw std::logic_error("a heat map needs rows of equal lengths, each with a label");
  const double width = std::clamp(kMapWidth / static_cast<double>(columns), kMinCell, kMaxCell);
  const double height = std::max(std::min(width, kMaxRow), 10.0);
  std::string body;
  for (std::size_t r = 0; r < values.size(); ++r) {
    const double y = kMapTop + static_cast<double>(r) * height;
    body += svg::text_at(kMapLeft - 8, y + height / 2 + 4, "e", names.labels[r]);
    for (std::size_t c = 0; c < columns; ++c)
      body += cell(kMapLeft + static_cast<double>(c) * width, y, width, height, values[r][c],
                   fmt::format("{} {}, {} {}: {:.2f}", names.rows, names.labels[r], names.columns, c, values[r][c]));
  }
  const double bottom = kMapTop + height * static_cast<double>(values.size()),
               right = kMapLeft + width * static_cast<double>(columns);
  body += svg::text_at(kMapLeft - 8, kMapTop - 8, "e", names.rows);
  body += svg::text_at(kMapLeft, bottom + 18, "", concat(names.columns, " 0 … ", columns - 1));
  body += color_scale(kMapLeft + 20, bottom + 36);
  const std::string style =
      "<style>text{font:11px sans-serif;fill:#222}.h{font-size:16px;font-weight:bold}.m{text-anchor:middle}"
      ".e{text-anchor:end}.d{fill:#fff}.k{stroke:#ccc;stroke-width:.3}</style>\n";
  return svg::document(std::max(right, kMapLeft + 260) + 20, bottom + 74, style, names.title, kMapLeft - 40, body);
}

}  // namespace megatron::charts
