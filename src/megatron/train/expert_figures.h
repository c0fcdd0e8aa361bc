#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "megatron/model/experts/expert_layer.h"

namespace megatron::train {

/// How often experts of a model were chosen in a step, layer by layer, as numbers that ranks add up: sums over the
/// sequences of the ranks, so that they are the same in every layout.
class ExpertFigures {
 public:
  ExpertFigures() = default;
  /// Zeros.
  ExpertFigures(std::size_t layers, std::size_t experts) : experts_(experts), numbers_(layers * stride()) {}
  /// What numbers() of all ranks add up to.
  ExpertFigures(std::size_t experts, std::vector<double> numbers) : experts_(experts), numbers_(std::move(numbers)) {}

  /// Adds the counts of one rank. `layer`: its number among the layers that have experts.
  void add(std::size_t layer, const model::RouterCounts& counts);
  const std::vector<double>& numbers() const { return numbers_; }

  bool empty() const { return numbers_.empty(); }
  std::size_t layers() const { return empty() ? 0 : numbers_.size() / stride(); }
  std::size_t experts() const { return experts_; }
  /// Copies of tokens that chose each expert of the layer, [experts].
  std::span<const double> loads(std::size_t layer) const;
  /// Share of the layer's copies that were dropped, 0 … 1.
  double dropped_share(std::size_t layer) const;
  /// The most copies that chose an expert of the layer, as a multiple of the mean: 1 where the load is even.
  double imbalance(std::size_t layer) const;
  /// Sums of the auxiliary losses over the tokens that count.
  double balance(std::size_t layer) const { return at(layer, 1); }
  double z(std::size_t layer) const { return at(layer, 2); }

 private:
  std::size_t stride() const { return experts_ + 3; }
  double at(std::size_t layer, std::size_t field) const { return numbers_[layer * stride() + experts_ + field]; }
  double copies(std::size_t layer) const;

  std::size_t experts_ = 0;
  std::vector<double> numbers_;  ///< of each layer its loads, then what was dropped, balance, z
};

}  // namespace megatron::train
