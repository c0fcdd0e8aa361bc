#include "megatron/plan/gradient_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "megatron/plan/rank_buffers.h"

namespace megatron::plan {
namespace {

ParameterSpec parameter(std::int64_t size, std::int64_t depth, int stage = 0, bool in_forward = false) {
  return {.name = "p", .shape = {size}, .stage = stage, .depth = depth, .in_forward = in_forward};
}

GradientPool pool_of(const std::vector<ParameterSpec>& specs, std::int64_t bucket_size,
                     const GradientPoolOptions& options) {
  return gradient_pool(buffer_layout(specs, bucket_size, {.alignment = 1}), specs, options);
}

/// An embedding, four layers, what follows them; a bucket each, the last parameter's first.
std::vector<ParameterSpec> equal_layers() {
  return {parameter(50, 0), parameter(10, 1), parameter(10, 2), parameter(10, 3), parameter(10, 4), parameter(2, 5)};
}

TEST(GradientPool, HoldsTwoNeighboursWhileOneIsReducedAndElseOne) {
  const GradientPool two = pool_of(equal_layers(), 1, {.overlap = true});
  EXPECT_EQ(two.size, 60);  // embedding and first layer
  EXPECT_EQ(two.begin, (std::vector<std::int64_t>{10, 0, 10, 0, 50, 0}));
  const GradientPool one = pool_of(equal_layers(), 1, {.overlap = false});
  EXPECT_EQ(one.size, 50);
  EXPECT_EQ(one.begin, (std::vector<std::int64_t>(6, 0)));
}

TEST(GradientPool, GivesStagesTheSameMemory) {
  const std::vector<ParameterSpec> specs{parameter(10, 1, 0), parameter(10, 2, 0), parameter(10, 5, 1),
                                         parameter(10, 6, 1)};
  EXPECT_EQ(pool_of(specs, 1, {}).size, 20);
  EXPECT_EQ(pool_of(specs, 1, {.overlap = false}).size, 10);
}

TEST(GradientPool, LeavesABucketAloneWhoseContributionsWaitForOtherOperations) {
  auto specs = equal_layers();
  specs.push_back(parameter(30, 5, 0, /*in_forward=*/true));
  EXPECT_EQ(pool_of(specs, 1, {.overlap = false}).size, 50 + 30);
  EXPECT_EQ(pool_of(specs, 1, {.overlap = true}).size, 60 + 30);
  EXPECT_EQ(pool_of(equal_layers(), 1, {.split_backward = true, .overlap = false}).size, 10 + 50);
  EXPECT_EQ(pool_of(equal_layers(), 1, {.split_backward = true, .overlap = true}).size, 20 + 50);
}

// Goes backward through random models as a rank does and asks of every moment that what is there lies apart.
TEST(GradientPool, KeepsApartWhateverIsThereAtTheSameTime) {
  std::mt19937 random(3);
  const auto upto = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)) + 1; };
  std::int64_t saved = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<ParameterSpec> specs;
    const int stages = upto(2), layers = upto(6);
    for (int stage = 0; stage < stages; ++stage)
      for (int layer = 0; layer < layers; ++layer)
        for (int k = upto(3); k > 0; --k) specs.push_back(parameter(upto(40), 1 + stage * layers + layer, stage));
    const BufferLayout layout = buffer_layout(specs, upto(90), {.alignment = 1});
    const bool overlap = round % 2 == 0;
    const GradientPool pool = gradient_pool(layout, specs, {.overlap = overlap});
    saved += layout.size - pool.size;
    EXPECT_LE(pool.size, layout.size);
    for (int stage = 0; stage < stages; ++stage) {
      std::set<std::size_t> before;  // finished at the depth before: under way with overlap
      for (std::int64_t depth = (stage + 1) * layers; depth > stage * layers; --depth) {
        std::set<std::size_t> here, after;
        for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
          std::int64_t first = 1 << 20, last = 0;
          for (const int p : layout.buckets[b].parameters) {
            first = std::min(first, specs[static_cast<std::size_t>(p)].depth);
            last = std::max(last, specs[static_cast<std::size_t>(p)].depth);
          }
          if (layout.buckets[b].stage != stage) continue;
          if (first <= depth && depth <= last) here.insert(b);
          if (first == depth) after.insert(b);
        }
        if (overlap) here.insert(before.begin(), before.end());
        std::vector<bool> used(static_cast<std::size_t>(pool.size));
        for (const std::size_t b : here)
          for (std::int64_t at = 0; at < layout.buckets[b].end - layout.buckets[b].begin; ++at) {
            const auto place = static_cast<std::size_t>(pool.begin[b] + at);
            ASSERT_LT(place, used.size());
            EXPECT_FALSE(used[place]) << "round " << round << " depth " << depth;
            used[place] = true;
          }
        before = after;
      }
    }
  }
  EXPECT_GT(saved, 0);
}

TEST(RankGradientPool, IsThereWithTheStrategyAndSeveralDataParallelRanksAlone) {
  config::RunConfig config;
  config.model.num_layers = 8;
  config.model.vocab_size = 500;
  config.optimizer.bucket_size = 10'000;
  config.optimizer.use_distributed_optimizer = true;
  const auto size = [&](int dp, const char* strategy) -> std::int64_t {
    config.parallel.world_size = dp;
    config.optimizer.data_parallel_sharding_strategy = strategy;
    const ResolvedRun run = resolve(config);
    const auto specs = gpt_parameters(run.shape, 1, 0);
    const auto pool = rank_gradient_pool(run, specs, rank_layout(run, specs));
    return pool ? pool->size : 0;
  };
  EXPECT_EQ(size(1, "optim_grads"), 0);
  EXPECT_EQ(size(4, "optim"), 0);
  // The tied embedding with the positions, 128 + 512 rows of 256; two layers of 789,760 and padding.
  EXPECT_GT(size(4, "optim_grads"), 2 * 789'760 + 512 * 256);
  EXPECT_LT(size(4, "optim_grads"), 3 * 789'760 + 2 * 512 * 256);
}

}  // namespace
}  // namespace megatron::plan
