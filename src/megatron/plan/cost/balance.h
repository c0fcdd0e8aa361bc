#pragma once
#include <cstdint>
#include <vector>

// Layers of unequal cost to stages, so that the most expensive stage costs least.
namespace megatron::plan {

/// What the layers, the embedding, and the output layer with its loss cost, in any unit.
struct SplitCosts {
  std::vector<double> layers = {};  ///< of each layer in order; empty: all alike, 1 each
  double embedding = 0, output = 0;
  /// Whether the first stage has the embedding, and the last the output: stages that may have no layer.
  bool begins = true, ends = true;
};

/// Layers of each stage, in order, such that the most expensive stage costs least; of such splits the one with the
/// least sum of squared costs, which evens out the others too. Stages of embedding or output may have no layer, where
/// these cost as much; the others have at least one. Of equal splits, later stages have more: they keep
/// fewer activations. Costs are not negative. Throws ConfigError where there are too few layers, std::logic_error where
/// costs.layers are not num_layers.
///
/// The least largest cost by bisection, with a greedy filling for each guess; then dynamic programming over the splits
/// whose stages cost no more.
std::vector<std::int64_t> balanced_layers(std::int64_t num_layers, int num_stages, const SplitCosts& costs);

}  // namespace megatron::plan
