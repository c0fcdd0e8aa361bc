#pragma once
#include <string>
#include <utility>
#include <vector>

// Curves that compare runs, as a picture.
namespace megatron::charts {

struct Curve {
  std::string name;
  /// (x, y), x ascending. Where y is not a finite number the curve has a gap.
  std::vector<std::pair<double, double>> points;
};

/// Numbers at which an axis from `low` to `high` is labelled: multiples of 1, 2 or 5 times a power of ten, at most
/// `most` steps apart. low < high, both finite.
std::vector<double> axis_ticks(double low, double high, int most);

/// The curve whose y are the means of the last `window` finite ones up to each point; what is not finite stays.
Curve smoothed(const Curve& curve, int window);

/// One SVG file that needs no other: the curves over common axes from the least to the greatest finite value, named in
/// the legend. At least one curve must have a finite point, and there are at most 8: std::logic_error else.
std::string draw_curves(const std::string& title, const std::string& x_name, const std::string& y_name,
                        const std::vector<Curve>& curves);

}  // namespace megatron::charts
