#include "megatron/plan/cost/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"

namespace megatron::plan {
namespace {

using Layers = std::vector<std::int64_t>;

double cost_of(const SplitCosts& costs, std::int64_t layer) {
  return costs.layers.empty() ? 1 : costs.layers[static_cast<std::size_t>(layer)];
}

std::vector<double> loads_of(const Layers& split, const SplitCosts& costs) {
  std::vector<double> loads;
  std::int64_t layer = 0;
  for (const std::int64_t count : split) {
    double load = 0;
    for (std::int64_t k = 0; k < count; ++k) load += cost_of(costs, layer++);
    loads.push_back(load);
  }
  loads.front() += costs.embedding;
  loads.back() += costs.output;
  return loads;
}

double largest(const std::vector<double>& loads) { return *std::ranges::max_element(loads); }
double squares(const std::vector<double>& loads) {
  return std::inner_product(loads.begin(), loads.end(), loads.begin(), 0.0);
}

/// Every split of the layers, in order, of which embedding and output may stand alone.
void for_each_split(std::int64_t layers, int stages, const SplitCosts& costs,
                    const std::function<void(const Layers&)>& visit) {
  Layers split;
  const std::function<void(std::int64_t)> place = [&](std::int64_t left) {
    const auto stage = static_cast<int>(split.size());
    if (stage == stages) {
      if (left == 0) visit(split);
      return;
    }
    const bool alone = (stage == 0 && costs.begins) || (stage + 1 == stages && costs.ends);
    for (std::int64_t count = alone ? 0 : 1; count <= left; ++count) {
      split.push_back(count);
      place(left - count);
      split.pop_back();
    }
  };
  place(layers);
}

/// That of the least largest stage, then of the least squares, whose earlier stages have fewer layers.
void expect_best(std::int64_t layers, int stages, const SplitCosts& costs) {
  double least = 1e300;
  for_each_split(layers, stages, costs,
                 [&](const Layers& split) { least = std::min(least, largest(loads_of(split, costs))); });
  double evenest = 1e300;
  Layers best;
  for_each_split(layers, stages, costs, [&](const Layers& split) {
    const auto loads = loads_of(split, costs);
    if (largest(loads) > least * (1 + 1e-9) || squares(loads) >= evenest * (1 - 1e-9)) return;
    evenest = squares(loads);
    best = split;
  });
  const Layers split = balanced_layers(layers, stages, costs);
  EXPECT_EQ(split, best) << layers << " layers on " << stages;
  EXPECT_EQ(std::reduce(split.begin(), split.end()), layers);
  EXPECT_NEAR(largest(loads_of(split, costs)), least, 1e-9 * least);
}

TEST(BalancedLayers, OfEqualCostAreThoseOfEveryOtherSplitTried) {
  for (int stages = 1; stages <= 5; ++stages)
    for (std::int64_t layers = std::max(1, stages - 2); layers <= 9; ++layers)
      for (const double embedding : {0.0, 0.3, 2.0})
        for (const double output : {0.0, 0.5, 1.0, 3.7})
          expect_best(layers, stages, {.embedding = embedding, .output = output});
}

TEST(BalancedLayers, OfUnequalCostAreThoseOfEveryOtherSplitTried) {
  constexpr std::uint64_t kKey = stream_key(7, "balance");
  std::uint64_t drawn = 0;
  for (int stages = 2; stages <= 5; ++stages)
    for (int repeat = 0; repeat < 60; ++repeat) {
      SplitCosts costs;
      const auto draw = [&] { return static_cast<double>(random_word(kKey, 0, drawn++) % 8); };
      const std::int64_t layers = stages + static_cast<std::int64_t>(draw());
      for (std::int64_t l = 0; l < layers; ++l) costs.layers.push_back(0.1 * draw());  // some cost nothing
      costs.embedding = 0.3 * draw();
      costs.output = draw();
      costs.begins = repeat % 3 != 1;
      costs.ends = repeat % 3 != 2;
      expect_best(layers, stages, costs);
    }
}

TEST(BalancedLayers, KeepExpensiveLayersApart) {
  // Every fourth layer is as expensive as three others.
  EXPECT_EQ(balanced_layers(8, 4, {.layers = {1, 1, 1, 3, 1, 1, 1, 3}}), (Layers{3, 1, 3, 1}));
  // Of dense layers before experts.
  EXPECT_EQ(balanced_layers(8, 2, {.layers = {1, 1, 1, 1, 3, 3, 3, 3}}), (Layers{5, 3}));
  EXPECT_EQ(balanced_layers(4, 3, {.layers = {}, .embedding = 5, .output = 5}), (Layers{0, 4, 0}));
}

TEST(BalancedLayers, OfManyLayersAreBest) {
  SplitCosts costs{.layers = std::vector<double>(4096, 1), .embedding = 0.5, .output = 2.5};
  for (std::size_t l = 0; l < costs.layers.size(); l += 3) costs.layers[l] = 2;
  const Layers split = balanced_layers(4096, 1024, costs);
  EXPECT_EQ(std::reduce(split.begin(), split.end()), 4096);
  const auto loads = loads_of(split, costs);
  EXPECT_DOUBLE_EQ(largest(loads), 6) << "of a mean of 5.3";
}

TEST(BalancedLayers, NeedOneForEachInnerStage) {
  EXPECT_THAT([] { balanced_layers(2, 5, {}); },
              testing::ThrowsMessage<ConfigError>(testing::HasSubstr("--pp 4 --vpp 1 (the most stages)")));
}

}  // namespace
}  // namespace megatron::plan
