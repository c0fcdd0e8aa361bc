#include "megatron/plan/parameters/parameter_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "megatron/config/options.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "tests/testing/folders.h"

namespace megatron::plan {
namespace {

using ::testing::ElementsAre;

constexpr Owners kTwo{{2, 0}, {2, 0}};

/// Of `num_layers` layers the first `again` are computed again, `size` at once.
std::vector<LayerGroup> groups_of(std::int64_t num_layers, std::int64_t again, std::int64_t size) {
  std::vector<LayerGroup> groups;
  for (std::int64_t l = 0; l < again; l += size) groups.push_back({l, std::min(l + size, again), true});
  if (again < num_layers) groups.push_back({again, num_layers, false});
  return groups;
}

const StageReads kWhole{.num_layers = 4, .groups = groups_of(4, 0, 1), .partial_groups = groups_of(4, 0, 1)};

ParameterSpec parameter(std::int64_t size, std::int64_t depth, const char* name = "p", bool in_forward = false) {
  return {.name = name, .shape = {size}, .depth = depth, .in_forward = in_forward};
}

/// A bucket for each parameter.
BufferLayout buckets(const std::vector<ParameterSpec>& specs) { return buffer_layout(specs, 1, {.alignment = 1}); }

/// An embedding, four layers, what follows them.
std::vector<ParameterSpec> equal_layers(bool tied) {
  return {parameter(50, 0, kWordEmbedding, tied),
          parameter(10, 1),
          parameter(10, 2),
          parameter(10, 3),
          parameter(10, 4),
          parameter(2, 5)};
}

TEST(ParameterPool, HoldsALayerAndItsNeighbour) {
  const auto specs = equal_layers(false);
  const ParameterPool pool = parameter_pool(buckets(specs), specs, kTwo, {kWhole});
  ASSERT_EQ(pool.units.size(), 6U);
  EXPECT_EQ(pool.size, 60);  // embedding and first layer
  EXPECT_THAT(pool.orders.at(0).forward, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(pool.orders.at(0).backward, ElementsAre(5, 4, 3, 2, 1));  // no embedding is read
  EXPECT_THAT(pool.begin, ElementsAre(10, 0, 10, 0, 50, 0));
}

TEST(ParameterPool, LooksTokensAheadUpBehindTheLastNorm) {
  for (const bool tied : {false, true}) {
    auto specs = equal_layers(tied);
    specs.push_back(parameter(10, 6));  // a depth of multi-token prediction
    if (!tied) specs.push_back(parameter(50, 7));
    const ParameterPool pool = parameter_pool(buckets(specs), specs, kTwo, {kWhole});
    EXPECT_THAT(pool.orders.at(0).forward, ElementsAre(0, 1, 2, 3, 4, 5, 0, 6, tied ? 0 : 7));
    if (tied)
      EXPECT_THAT(pool.orders.at(0).backward, ElementsAre(6, 5, 4, 3, 2, 1));
    else
      EXPECT_THAT(pool.orders.at(0).backward, ElementsAre(7, 6, 5, 4, 3, 2, 1));
  }
}

TEST(ParameterPool, ReadsATiedEmbeddingAtBothEnds) {
  const auto specs = equal_layers(true);
  const ParameterPool pool = parameter_pool(buckets(specs), specs, kTwo, {kWhole});
  EXPECT_THAT(pool.orders.at(0).forward, ElementsAre(0, 1, 2, 3, 4, 5, 0));
  EXPECT_EQ(pool.size, 62);  // it lies beside the last layer and the norm behind that
}

TEST(ParameterPool, ReadsLayersThatAreComputedAgainInGroups) {
  const auto specs = equal_layers(false);
  const auto backward = [&](std::int64_t layers, std::int64_t group) {
    return parameter_pool(
               buckets(specs), specs, kTwo,
               {{.num_layers = 4, .groups = groups_of(4, layers, group), .partial_groups = groups_of(4, 2, 2)}})
        .orders.at(0);
  };
  EXPECT_THAT(backward(4, 1).backward, ElementsAre(5, 4, 3, 2, 1));
  EXPECT_THAT(backward(4, 2).backward, ElementsAre(5, 3, 4, 3, 1, 2, 1));
  EXPECT_THAT(backward(4, 3).backward, ElementsAre(5, 4, 1, 2, 3, 2, 1));
  EXPECT_THAT(backward(2, 2).backward, ElementsAre(5, 4, 3, 1, 2, 1));
  EXPECT_THAT(backward(4, 3).partial_backward, ElementsAre(5, 4, 3, 1, 2, 1));
}

TEST(ParameterPool, LeavesOutWhatARankOwnsWhole) {
  auto specs = equal_layers(false);
  specs.insert(specs.begin() + 2, parameter(70, 1));
  specs[2].of_expert = true;
  const BufferLayout layout = buffer_layout(specs, 1, {.alignment = 1, .experts_apart = true});
  const ParameterPool shared = parameter_pool(layout, specs, kTwo, {kWhole});
  EXPECT_EQ(shared.size, 80 + 50);
  EXPECT_EQ(shared.units[1].buckets.size(), 2U);
  const ParameterPool own = parameter_pool(layout, specs, {{2, 0}, {1, 0}}, {kWhole});
  EXPECT_EQ(own.size, 60);
  EXPECT_EQ(std::ranges::count(own.begin, ParameterPool::kOwned), 1);
}

TEST(ParameterPool, GathersWhatIsNotThereAnyMore) {
  const auto specs = equal_layers(false);
  const ParameterPool pool = parameter_pool(buckets(specs), specs, kTwo, {kWhole});
  const auto& orders = pool.orders.at(0);
  EXPECT_EQ(gathered_elements(pool, orders.forward), 50 + 4 * 10 + 2);
  std::vector<int> both = orders.forward;
  both.insert(both.end(), orders.backward.begin(), orders.backward.end());
  // The last layer and the norm are there yet, and the first layer, whose place nobody else took.
  EXPECT_EQ(gathered_elements(pool, both) - gathered_elements(pool, orders.forward), 2 * 10);
}

// Whatever a pass reads next comes while it computes.
TEST(ParameterPool, KeepsApartWhatFollowsOneAnotherInAnyPass) {
  std::mt19937 random(5);
  const auto upto = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)) + 1; };
  std::int64_t saved = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<ParameterSpec> specs;
    std::vector<StageReads> stages;
    const int count = upto(3);
    std::int64_t layer = 0;
    const bool tied = round % 2 == 0;
    for (int stage = 0; stage < count; ++stage) {
      const std::int64_t layers = upto(6);
      const bool first = stage == 0, last = stage + 1 == count;
      if (first) specs.push_back(parameter(upto(90), 0, kWordEmbedding, tied));
      for (std::int64_t l = 0; l < layers; ++l)
        for (int k = upto(3); k > 0; --k) {
          specs.push_back(parameter(upto(40), 1 + layer + l));
          specs.back().stage = stage;
        }
      if (last) specs.push_back(parameter(upto(9), 1 + layer + layers));
      specs.back().stage = stage;
      const std::int64_t again = std::min<std::int64_t>(layers, upto(6) - 1);
      stages.push_back(
          {stage, layer, layers, last, groups_of(layers, again, upto(3)), groups_of(layers, again / 2, 1)});
      layer += layers;
    }
    const BufferLayout layout = buckets(specs);
    const ParameterPool pool = parameter_pool(layout, specs, kTwo, stages);
    saved += layout.size - pool.size;
    EXPECT_LE(pool.size, layout.size);
    for (const ParameterUnit& unit : pool.units) EXPECT_LE(unit.memory.end, pool.size);
    for (const auto& [stage, orders] : pool.orders)
      for (const auto* order : {&orders.forward, &orders.backward, &orders.partial_backward})
        for (std::size_t i = 0; i + 1 < order->size(); ++i) {
          const auto &a = pool.units[static_cast<std::size_t>((*order)[i])],
                     &b = pool.units[static_cast<std::size_t>((*order)[i + 1])];
          EXPECT_TRUE((*order)[i] == (*order)[i + 1] || intersection(a.memory, b.memory).empty()) << "round " << round;
        }
  }
  EXPECT_GT(saved, 0);
}

config::RunConfig gpt2(int dp, const char* strategy) {
  config::RunConfig config;
  config::load_toml(config, tests_folder() + "/../configs/gpt2_124m.toml");
  config.parallel.world_size = dp;
  config.optimizer.use_distributed_optimizer = true;
  config.optimizer.data_parallel_sharding_strategy = strategy;
  return config;
}

TEST(RankParameterPool, OfAModelIsItsTableALayerAndTheShards) {
  for (const int dp : {2, 4, 8}) {
    const auto bytes = [&](const char* strategy) {
      return memory_plan(resolve(gpt2(dp, strategy)), 0, 0, 0).parameters;
    };
    const std::int64_t whole = bytes("optim_grads"), shared = bytes("optim_grads_params");
    // The tied table with the positions, and a layer of 7.1 M beside it.
    EXPECT_LT(shared, whole / dp + 4 * (39'500'000 + 7'150'000)) << dp;
    EXPECT_GT(shared, whole / dp + 4 * (39'300'000 + 7'080'000)) << dp;
  }
}

TEST(RankParameterPool, IsThereWithTheStrategyAndSeveralDataParallelRanksAlone) {
  const auto is_there = [](int dp, const char* strategy) {
    const ResolvedRun run = resolve(gpt2(dp, strategy));
    const auto specs = model_parameters(run.shape, 1, 0);
    return rank_parameter_pool(run, specs, rank_layout(run, specs), run.parts).has_value();
  };
  EXPECT_FALSE(is_there(1, "optim_grads_params"));
  EXPECT_FALSE(is_there(4, "optim_grads"));
  EXPECT_TRUE(is_there(4, "optim_grads_params"));
}

TEST(RankParameterPool, IsLeftOutAndWarnedOfWhereItSavesNothing) {
  config::RunConfig config = gpt2(2, "optim_grads_params");
  config.model.num_layers = 2;
  const ResolvedRun run = resolve(config);
  const auto specs = model_parameters(run.shape, 1, 0);
  EXPECT_FALSE(rank_parameter_pool(run, specs, rank_layout(run, specs), run.parts));
  const std::vector<std::string> lines = sharding_warnings(run);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[1], ::testing::HasSubstr("pipeline rank 0: parameters that take turns need"));
}

TEST(RankLayout, WithSharedParametersHasNoBucketOfTwoLayers) {
  config::RunConfig config = gpt2(4, "optim_grads_params");
  for (const std::int64_t size : {0, 1'000'000, 100'000'000}) {
    config.optimizer.bucket_size = size;
    const ResolvedRun run = resolve(config);
    const auto specs = model_parameters(run.shape, 1, 0);
    const BufferLayout layout = rank_layout(run, specs);
    EXPECT_EQ(layout.buckets.size() > 14, size == 1'000'000);
    for (const BufferLayout::Bucket& bucket : layout.buckets)
      for (const int parameter : bucket.parameters)
        EXPECT_EQ(specs[static_cast<std::size_t>(parameter)].depth,
                  specs[static_cast<std::size_t>(bucket.parameters.front())].depth);
  }
}

}  // namespace
}  // namespace megatron::plan
