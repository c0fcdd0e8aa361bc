#include "megatron/plan/cost/balance.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

using LayerCounts = std::vector<std::int64_t>;

class LayerSplit {
 public:
  LayerSplit(std::int64_t num_layers, int num_stages, const SplitCosts& costs)
      : layers_(num_layers), stages_(num_stages), costs_(costs), up_to_{0} {
    for (std::int64_t l = 0; l < num_layers; ++l)
      up_to_.push_back(up_to_.back() + (costs.layers.empty() ? 1 : costs.layers[static_cast<std::size_t>(l)]));
  }

  LayerCounts best() const {
    double low = 0, high = up_to_.back() + costs_.embedding + costs_.output;  // what no stage exceeds
    for (int guess = 0; guess < kGuesses && high - low > kTolerance * high; ++guess) {
      const double limit = (low + high) / 2;
      if (const auto filled = filled_to(limit))
        high = largest(*filled);
      else
        low = limit;
    }
    return evenest_within(high * (1 + kTolerance));
  }

 private:
  // Sums of the same costs in another order are equal, though not to the last bit.
  static constexpr double kTolerance = 1e-11;
  static constexpr int kGuesses = 200;

  std::int64_t least(int stage) const {
    return (stage == 0 && costs_.begins) || (stage + 1 == stages_ && costs_.ends) ? 0 : 1;
  }
  /// Layers that the stages after `stage` need.
  std::int64_t needed_after(int stage) const { return std::max(0, stages_ - 1 - stage - (costs_.ends ? 1 : 0)); }

  /// Cost of layers [first, last) on a stage.
  double cost(int stage, std::int64_t first, std::int64_t last) const {
    return up_to_[static_cast<std::size_t>(last)] - up_to_[static_cast<std::size_t>(first)] +
           (stage == 0 ? costs_.embedding : 0) + (stage + 1 == stages_ ? costs_.output : 0);
  }

  double largest(const LayerCounts& counts) const {
    double most = 0;
    std::int64_t first = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      const std::int64_t last = first + counts[static_cast<std::size_t>(stage)];
      most = std::max(most, cost(stage, first, last));
      first = last;
    }
    return most;
  }

  /// As many layers on each stage as cost no more than `limit`, from the first stage on; nothing where some are left.
  std::optional<LayerCounts> filled_to(double limit) const {
    LayerCounts counts;
    std::int64_t first = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      const std::int64_t most = layers_ - needed_after(stage);
      std::int64_t last = first + least(stage);
      if (last > most || cost(stage, first, last) > limit) return std::nullopt;
      while (last < most && cost(stage, first, last + 1) <= limit) ++last;
      counts.push_back(last - first);
      first = last;
    }
    if (first != layers_) return std::nullopt;
    return counts;
  }

  /// Of the splits whose stages cost at most `limit` the one with the least sum of squares.
  LayerCounts evenest_within(double limit) const {
    const auto width = static_cast<std::size_t>(layers_) + 1;
    const auto at = [width](int stage, std::int64_t first) {
      return static_cast<std::size_t>(stage) * width + static_cast<std::size_t>(first);
    };
    constexpr double kNone = std::numeric_limits<double>::infinity();
    // squares[stage, first]: the least sum of stage and those after it, which have the layers from `first` on.
    std::vector<double> squares(static_cast<std::size_t>(stages_ + 1) * width, kNone);
    squares[at(stages_, layers_)] = 0;
    const LayerCounts ends = furthest_ends(limit);
    // The last layer that a stage has, so that the sum is least; of sums that are equal the earliest.
    const auto end_of = [&](int stage, std::int64_t first) {
      std::int64_t best = -1;
      for (std::int64_t last = first + least(stage); last <= layers_; ++last) {
        const double own = cost(stage, first, last);
        if (own > limit) break;
        const double sum = own * own + squares[at(stage + 1, last)];
        if (sum >= squares[at(stage, first)] * (1 - kTolerance)) continue;
        squares[at(stage, first)] = sum;
        best = last;
      }
      return best;
    };
    std::vector<std::int32_t> last_of(squares.size(), -1);
    for (int stage = stages_ - 1; stage >= 0; --stage) {
      const std::int64_t most = stage == 0 ? 0 : ends[static_cast<std::size_t>(stage - 1)];
      for (std::int64_t first = 0; first <= most; ++first)
        last_of[at(stage, first)] = static_cast<std::int32_t>(end_of(stage, first));
    }
    LayerCounts counts;
    std::int64_t first = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      const std::int64_t last = last_of[at(stage, first)];
      if (last < 0) throw std::logic_error("no split keeps the limit that a split has kept");
      counts.push_back(last - first);
      first = last;
    }
    return counts;
  }

  /// By stage: where it ends at the latest.
  LayerCounts furthest_ends(double limit) const {
    LayerCounts ends;
    std::int64_t first = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      std::int64_t last = first;
      while (last < layers_ && cost(stage, first, last + 1) <= limit) ++last;
      ends.push_back(last);
      first = last;
    }
    return ends;
  }

  std::int64_t layers_;
  int stages_;
  const SplitCosts& costs_;
  std::vector<double> up_to_;  ///< sums of the layers before each
};

}  // namespace

std::vector<std::int64_t> balanced_layers(std::int64_t num_layers, int num_stages, const SplitCosts& costs) {
  const std::int64_t inner = std::max(0, num_stages - (costs.begins ? 1 : 0) - (costs.ends ? 1 : 0));
  if (num_layers < inner || num_layers < 1)
    throw ConfigError(
        rule_got_fix("every stage between the first and the last must have a layer.",
                     concat(num_layers, num_layers == 1 ? " layer, " : " layers, ", num_stages, " stages"),
                     concat("--pp ", num_layers + 2, " --vpp 1 (the most stages)")));
  if (!costs.layers.empty() && std::ssize(costs.layers) != num_layers)
    throw std::logic_error("costs of other layers than the model's");
  return LayerSplit(num_layers, num_stages, costs).best();
}

}  // namespace megatron::plan
