#include "megatron/charts/line_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <deque>
#include <limits>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/charts/svg.h"

namespace megatron::charts {
namespace {

namespace svg = svg;

// In pixels.
constexpr double kLeastLeft = 70, kTop = 60, kWidth = 720, kHeight = 360, kLegendRow = 18;
constexpr double kSize = 11;      // of the font
constexpr double kMaxName = 260;  // of a curve; longer ones are cut

// Told apart by people who see colours differently (Okabe and Ito 2008), dark enough on white.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#555555", "#000000"};

std::string style() {
  return "<style>text{font:11px sans-serif;fill:#222}.h{font-size:16px;font-weight:bold}.m{text-anchor:middle}"
         ".e{text-anchor:end}.d{fill:#fff}.x{stroke:#444;fill:none}.g{stroke:#e4e4e4;fill:none}"
         ".c{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}</style>\n";
}

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  /// One value alone has an axis too, and so have values that differ by less than their labels can say.
  void widen() {
    const double size = std::max(std::abs(low), std::abs(high));
    if (high - low > 1e-9 * size) return;
    const double margin = size == 0 ? 1 : size / 10;
    constexpr double kMax = std::numeric_limits<double>::max();
    low = std::max(low - margin, -kMax);
    high = std::min(high + margin, kMax);
  }
  /// `value` in it, as a share of its length, which itself may be no finite number.
  double share(double value) const { return (value / 2 - low / 2) / (high / 2 - low / 2); }
};

std::string number(double value) { return fmt::format("{:.10g}", value); }

std::string path(const std::string& classes, const std::string& steps, const std::string& colour = "") {
  return concat("<path class=\"", classes, "\"", colour.empty() ? "" : concat(" stroke=\"", colour, "\""), " d=\"",
                steps, "\"/>\n");
}

class Axes {
 public:
  explicit Axes(const std::vector<Curve>& curves) {
    for (const Curve& curve : curves)
      for (const auto& [x, y] : curve.points) {
        if (!std::isfinite(y)) continue;
        x_.take(x);
        y_.take(y);
      }
    if (!(y_.low <= y_.high)) throw std::logic_error("curves without a finite point");
    x_.widen();
    y_.widen();
    y_ticks_ = labelled(axis_ticks(y_.low, y_.high, 8));
    left_ = std::max(kLeastLeft, widest(y_ticks_) + 16);
    x_ticks_ = labelled(axis_ticks(x_.low, x_.high, 8));
    if (widest(x_ticks_) > kWidth / 9) x_ticks_ = labelled(axis_ticks(x_.low, x_.high, 4));  // long numbers
  }

  double left() const { return left_; }
  double right() const { return left_ + kWidth; }

  std::string grid(const std::string& x_name, const std::string& y_name) const {
    std::string out;
    for (const double x : x_ticks_) {
      out += path("g", concat("M", svg::px(at_x(x)), " ", svg::px(kTop), "v", svg::px(kHeight)));
      out += svg::text_at(at_x(x), kTop + kHeight + 16, "m", number(x));
    }
    for (const double y : y_ticks_) {
      out += path("g", concat("M", svg::px(left_), " ", svg::px(at_y(y)), "h", svg::px(kWidth)));
      out += svg::text_at(left_ - 6, at_y(y) + 4, "e", number(y));
    }
    out += path("x", concat("M", svg::px(left_), " ", svg::px(kTop), "v", svg::px(kHeight), "h", svg::px(kWidth)));
    out += svg::text_at(left_ + kWidth / 2, kTop + kHeight + 36, "m", svg::shortened(x_name, kWidth, kSize));
    return out + svg::text_at(10, kTop - 14, "", svg::shortened(y_name, kWidth, kSize));
  }

  std::string line(const Curve& curve, const char* colour) const {
    std::string steps;
    std::size_t drawn = 0;  // points without a gap
    const auto end = [&] {  // the round cap of a line of no length is a dot
      if (drawn == 1) steps += "h0";
      drawn = 0;
    };
    for (const auto& [x, y] : curve.points) {
      if (!std::isfinite(y)) {
        end();
        continue;
      }
      steps += concat(drawn > 0 ? "L" : "M", svg::px(at_x(x)), " ", svg::px(at_y(y)));
      ++drawn;
    }
    end();
    return path("c", steps, colour);
  }

 private:
  /// Where numbers differ by less than their labels say, one of those with equal labels.
  static std::vector<double> labelled(std::vector<double> ticks) {
    ticks.erase(std::unique(ticks.begin(), ticks.end(), [](double a, double b) { return number(a) == number(b); }),
                ticks.end());
    return ticks;
  }
  static double widest(const std::vector<double>& ticks) {
    double width = 0;
    for (const double tick : ticks) width = std::max(width, svg::text_width(number(tick), kSize));
    return width;
  }
  double at_x(double x) const { return left_ + kWidth * x_.share(x); }
  double at_y(double y) const { return kTop + kHeight * (1 - y_.share(y)); }

  Extent x_, y_;
  std::vector<double> x_ticks_, y_ticks_;
  double left_ = kLeastLeft;
};

}  // namespace

std::vector<double> axis_ticks(double low, double high, int most) {
  const double exact = high / most - low / most;  // the difference may be no finite number
  const double power = std::pow(10, std::floor(std::log10(exact)));
  double step = 10 * power;
  for (const double times : {5, 2, 1})
    if (times * power >= exact) step = times * power;
  std::vector<double> ticks;
  // The last ulp of a tick must not leave it out. Counted, as neighbouring multiples of huge numbers may be one number.
  const double slack = 1e-9 * step, first = std::ceil((low - slack) / step);
  for (int i = 0; i <= most && (first + i) * step <= high + slack && std::isfinite((first + i) * step); ++i)
    ticks.push_back((first + i) * step);
  return ticks;
}

Curve smoothed(const Curve& curve, int window) {
  Curve out{curve.name, {}};
  std::deque<double> last;
  for (const auto& [x, y] : curve.points) {
    if (!std::isfinite(y)) {
      out.points.emplace_back(x, y);
      continue;
    }
    last.push_back(y);
    if (std::cmp_greater(last.size(), window)) last.pop_front();
    double mean = 0;
    for (const double value : last) mean += value / static_cast<double>(last.size());
    out.points.emplace_back(x, mean);
  }
  return out;
}

std::string draw_curves(const std::string& title, const std::string& x_name, const std::string& y_name,
                        const std::vector<Curve>& curves) {
  if (curves.size() > kColours.size()) throw std::logic_error("more curves than colours");
  const Axes axes(curves);
  std::string body = axes.grid(x_name, y_name);
  double y = kTop + 14, names = 0;
  for (std::size_t i = 0; i < curves.size(); ++i, y += kLegendRow) {
    const std::string name = svg::shortened(curves[i].name, kMaxName, kSize);
    names = std::max(names, svg::text_width(name, kSize));
    body += axes.line(curves[i], kColours[i]);
    body += path("c", concat("M", svg::px(axes.right() + 24), " ", svg::px(y - 4), "h24"), kColours[i]);
    body += svg::text_at(axes.right() + 54, y, "", name);
  }
  return svg::document(axes.right() + 54 + names + 14, kTop + kHeight + 54, style(), title, axes.left(), body);
}

}  // namespace megatron::charts
