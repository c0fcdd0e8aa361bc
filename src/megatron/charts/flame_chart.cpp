#include "megatron/charts/flame_chart.h"

#include <algorithm>
#include <array>

#include "megatron/base/error.h"
#include "megatron/charts/svg.h"

namespace megatron::charts {
namespace {

constexpr double kLeft = 20, kTop = 52, kWidth = 1100, kRow = 22, kBottom = 16, kSize = 11, kMargin = 4;
constexpr double kThinnest = 0.5;  // narrower boxes are left out

int depth_of(const FlameBox& box) {
  int deepest = 0;
  for (const FlameBox& part : box.parts) deepest = std::max(deepest, depth_of(part));
  return deepest + 1;
}

std::string boxes(const FlameBox& box, double left, double width, int row) {
  if (width < kThinnest) return "";
  const double top = kTop + row * kRow;
  const std::string said = concat(box.label, box.text.empty() ? "" : ", ", box.text);
  std::string out = svg::box(left, top, width, kRow - 1, concat("c", row % 4)) +
                    concat("><title>", svg::escaped(said), "</title></rect>\n");
  const std::string shown = svg::shortened(said, width - 2 * kMargin, kSize);
  if (shown.size() > 4) out += svg::text_at(left + kMargin, top + 15, "", shown);
  auto parts = box.parts;
  std::ranges::stable_sort(parts, [](const FlameBox& a, const FlameBox& b) { return a.value > b.value; });
  for (const FlameBox& part : parts) {
    const double share = box.value > 0 ? width * part.value / box.value : 0;
    out += boxes(part, left, share, row + 1);
    left += share;
  }
  return out;
}

}  // namespace

std::string draw_flame(const std::string& title, const FlameBox& whole) {
  const std::string style =
      "<style>text{font:11px sans-serif;fill:#222}.h{font-size:16px;font-weight:bold}.d{fill:#fff}.c0{fill:#d5d5d5}"
      ".c1{fill:#f0b27a}.c2{fill:#f7dc6f}.c3{fill:#aed6f1}</style>\n";
  return svg::document(kWidth + 2 * kLeft, kTop + depth_of(whole) * kRow + kBottom, style, title, kLeft,
                       boxes(whole, kLeft, kWidth, 0));
}

}  // namespace megatron::charts
