#include "megatron/train/expert_figures.h"

#include <algorithm>
#include <numeric>

namespace megatron::train {

void ExpertFigures::add(std::size_t layer, const model::RouterCounts& counts) {
  double* const to = numbers_.data() + layer * stride();
  for (std::size_t e = 0; e < experts_; ++e) to[e] += counts.loads[e];
  to[experts_] += counts.dropped;
  to[experts_ + 1] += counts.balance;
  to[experts_ + 2] += counts.z;
}

std::span<const double> ExpertFigures::loads(std::size_t layer) const {
  return std::span(numbers_).subspan(layer * stride(), experts_);
}

double ExpertFigures::copies(std::size_t layer) const {
  const std::span<const double> each = loads(layer);
  return std::accumulate(each.begin(), each.end(), 0.0);
}

double ExpertFigures::dropped_share(std::size_t layer) const {
  const double all = copies(layer);
  return all > 0 ? at(layer, 0) / all : 0;
}

double ExpertFigures::imbalance(std::size_t layer) const {
  const double all = copies(layer);
  return all > 0 ? *std::ranges::max_element(loads(layer)) * static_cast<double>(experts_) / all : 0;
}

}  // namespace megatron::train
