#include "megatron/plan/layout_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/schedule/table.h"
#include "tests/testing/folders.h"
#include "tests/testing/sanitized.h"

namespace megatron::plan {
namespace {

Hardware h100() {
  const auto path = std::filesystem::path(tests_folder()).parent_path() / "configs/hardware/dgx-h100.toml";
  return parse_hardware(read_file(path, 1 << 20), path.string());
}

config::RunConfig recipe() {
  config::RunConfig config;
  config.model.num_layers = 8;
  config.model.hidden_size = 2048;
  config.model.num_attention_heads = 16;
  config.model.vocab_size = 32000;
  config.data.seq_length = 2048;
  config.train.dtype = "bf16";
  config.train.global_batch_size = 32;
  config.parallel.world_size = 16;
  config.parallel.device = "cuda";
  return config;
}

/// Every layout, planned: the truth.
std::vector<FoundLayout> all_layouts(const config::RunConfig& recipe, const Hardware& hardware, double capacity) {
  std::vector<FoundLayout> found;
  std::vector<std::pair<schedule::ScheduleInfo, const char*>> schedules_and_stages;
  for (const schedule::ScheduleInfo& each : schedule::schedules())
    for (const char* stages : {"", "balanced"}) schedules_and_stages.emplace_back(each, stages);
  const std::int64_t cp = recipe.parallel.cp, world = recipe.parallel.world_size / cp, layers = recipe.model.num_layers;
  for (int tp = 1; tp <= 8; ++tp)
    for (int pp = 1; pp <= layers; ++pp)
      for (int vpp = 1; vpp <= layers; ++vpp)
        for (int micro = 1; micro <= recipe.train.global_batch_size; ++micro)
          for (const char* recompute : {"none", "selective", "full"})
            for (const char* sharding : {"", "optim", "optim_grads", "optim_grads_params"})
              for (const auto& [each, stages] : schedules_and_stages) {
                const bool even = *stages == '\0';
                if (world % (tp * pp) != 0 || recipe.model.num_attention_heads % tp != 0 || pp * vpp > layers ||
                    (even && layers % (pp * vpp) != 0) || (pp == 1 && (vpp > 1 || !even)) ||
                    (!even && vpp > (layers % (pp * vpp) == 0 ? 1 : 2)) ||
                    (pp == 1 && std::string(each.name) != "1f1b") || !each.takes(vpp) ||
                    (!each.is_default && !each.splits_backward))
                  continue;
                const std::int64_t dp = world / tp / pp;
                if (recipe.train.global_batch_size % (dp * micro) != 0 || (dp * cp == 1 && *sharding != '\0')) continue;
                const std::int64_t microbatches = recipe.train.global_batch_size / dp / micro;
                if (vpp > 1 && microbatches % pp != 0) continue;
                const LayoutChoice choice{tp, pp, vpp, micro, pp == 1 ? "" : each.name, recompute, sharding, stages};
                const config::RunConfig config = with_layout(recipe, choice);
                if (!broken_rules(config).empty()) continue;
                const ResolvedRun run = resolve(config);
                if (!even && std::ranges::all_of(run.parts, [&](auto& p) { return p.num_layers * pp * vpp == layers; }))
                  continue;  // equal stages
                const MemoryPlan memory = largest_memory(run);
                if (static_cast<double>(memory.total()) > capacity) continue;
                found.push_back({choice, run.grid.sample_shares(), microbatches, memory, step_cost(run, hardware)});
              }
  std::ranges::stable_sort(found, {}, [](const FoundLayout& each) { return each.cost.step_s; });
  return found;
}

/// Without those that recompute as few layers as fit, which all_layouts() has not.
std::vector<FoundLayout> but_fit(std::vector<FoundLayout> layouts) {
  std::erase_if(layouts, [](const FoundLayout& each) { return each.choice.recompute == "fit"; });
  return layouts;
}

TEST(LayoutSearch, FindsTheFastestOfAllThatFitWithoutPlanningThemAll) {
  const Hardware hardware = h100();
  for (const double capacity : {6e9, 80e9, 4e9}) {
    if (kSanitized && capacity != 6e9) continue;  // each takes a minute there
    const auto truth = all_layouts(recipe(), hardware, capacity);
    const LayoutSearch found = search_layouts(recipe(), hardware, capacity, {}, 5, 1 << 20, 2);
    EXPECT_TRUE(found.complete);
    ASSERT_GE(truth.size(), 5U) << capacity;
    const std::vector<FoundLayout> layouts = but_fit(found.layouts);
    ASSERT_GE(layouts.size(), 5U) << capacity;
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_DOUBLE_EQ(layouts[i].cost.step_s, truth[i].cost.step_s) << capacity << ", number " << i;
    EXPECT_EQ(layouts[0].choice, truth[0].choice) << flags_of(recipe(), truth[0].choice);
    EXPECT_LT(found.evaluated, found.allowed);
    for (const FoundLayout& each : found.layouts) EXPECT_LE(static_cast<double>(each.memory.total()), capacity);
  }
}

TEST(LayoutSearch, ProposesUnequalStagesWhereTheLayersDoNotDivideOrTheOutputIsLarge) {
  config::RunConfig odd = recipe();
  odd.model.num_layers = 7;
  odd.parallel.world_size = 8;
  odd.train.global_batch_size = 8;
  const auto truth = all_layouts(odd, h100(), 8e9);
  const LayoutSearch found = search_layouts(odd, h100(), 8e9, {}, 3, 1 << 20, 2);
  const std::vector<FoundLayout> layouts = but_fit(found.layouts);
  ASSERT_GE(layouts.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(layouts[i].cost.step_s, truth.at(i).cost.step_s) << i;

  config::RunConfig large = recipe();
  large.model.vocab_size = 64'000;  // the output costs as much as 2.6 layers
  large.parallel.world_size = 8;
  large.train.global_batch_size = 8;
  int balanced = 0;
  for (const FoundLayout& each : search_layouts(large, h100(), 12e9, {}, 1000, 1 << 20, 2).layouts) {
    if (each.choice.pp != 2 || each.choice.vpp != 1 || each.choice.stages.empty()) continue;
    ++balanced;
    EXPECT_THAT(flags_of(large, each.choice), testing::HasSubstr(" --pp-layout balanced"));
    EXPECT_THAT(each.stage_layers, testing::ElementsAre(5, 3));
  }
  EXPECT_GT(balanced, 0);
}

TEST(LayoutSearch, RecomputesAsFewLayersAsFit) {
  const LayoutSearch found = search_layouts(recipe(), h100(), 4e9, {}, 300, 1 << 20, 2);
  int fewer = 0;
  for (const FoundLayout& each : found.layouts) {
    EXPECT_LE(static_cast<double>(each.memory.total()), 4e9);
    if (each.choice.recompute != "fit") continue;
    ++fewer;
    EXPECT_GT(each.recomputed, 0);
    EXPECT_LT(each.recomputed, 8);
    EXPECT_THAT(flags_of(recipe(), each.choice),
                testing::HasSubstr("--train.recompute full --train.recompute_layers fit --train.memory_limit_gb 4"));
    LayoutChoice all = each.choice;
    all.recompute = "full";
    all.limit_gb = 0;
    EXPECT_LT(each.cost.step_s, step_cost(resolve(with_layout(recipe(), all)), h100()).step_s);
  }
  EXPECT_GT(fewer, 0);
}

// As a run writes that took what a search has found: it can be searched again.
TEST(LayoutSearch, ReplacesWhatARecipeSaysOfItsLayout) {
  config::RunConfig resolved = recipe();
  resolved.parallel.tp = resolved.parallel.pp = 2;
  resolved.parallel.pp_layout = "Et*3|t*5L";
  resolved.parallel.account_for_loss = true;
  resolved.train.recompute = "full";
  resolved.train.recompute_layers = "0-1";
  resolved.optimizer.use_distributed_optimizer = true;
  resolved.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
  const LayoutSearch want = search_layouts(recipe(), h100(), 80e9, {}, 3, 1000, 2),
                     got = search_layouts(resolved, h100(), 80e9, {}, 3, 1000, 2);
  ASSERT_EQ(got.layouts.size(), want.layouts.size());
  for (std::size_t i = 0; i < want.layouts.size(); ++i) EXPECT_EQ(got.layouts[i].choice, want.layouts[i].choice) << i;
  const std::string flags = flags_of(resolved, {});
  EXPECT_THAT(flags, testing::HasSubstr(" --pp-layout= --parallel.account_for_loss false "));
  EXPECT_THAT(flags, testing::HasSubstr(" --train.recompute_layers= "));
  EXPECT_THAT(flags, testing::HasSubstr(" --use-distributed-optimizer false "));
}

TEST(LayoutSearch, OfExpertsKeepsTheRanksThatShareThem) {
  config::RunConfig experts = recipe();
  experts.model.num_layers = 4;
  experts.model.add_bias_linear = false;
  experts.model.num_experts = 8;
  experts.model.moe_ffn_hidden_size = 512;
  experts.model.moe_shared_expert_intermediate_size = 4 * 33;  // which 8 does not divide
  experts.parallel.ep = 2;
  experts.parallel.world_size = 8;
  experts.train.global_batch_size = 8;
  const auto truth = all_layouts(experts, h100(), 80e9);
  const LayoutSearch found = search_layouts(experts, h100(), 80e9, {}, 3, 1 << 20, 2);
  const std::vector<FoundLayout> layouts = but_fit(found.layouts);
  ASSERT_GE(layouts.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(layouts[i].cost.step_s, truth.at(i).cost.step_s) << i;
    EXPECT_EQ(layouts[i].dp % 2, 0);
  }
  EXPECT_THAT(flags_of(experts, found.layouts[0].choice), testing::HasSubstr(" --ep 2"));
}

TEST(LayoutSearch, KeepsTheRanksThatShareSequences) {
  config::RunConfig shared = recipe();
  shared.model.num_layers = 4;
  shared.parallel.cp = 4;
  shared.train.global_batch_size = 4;
  const auto truth = all_layouts(shared, h100(), 80e9);
  const LayoutSearch found = search_layouts(shared, h100(), 80e9, {}, 3, 1 << 20, 2);
  ASSERT_GE(found.layouts.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_DOUBLE_EQ(found.layouts[i].cost.step_s, truth.at(i).cost.step_s) << flags_of(shared, truth[i].choice);
  EXPECT_THAT(flags_of(shared, found.layouts[0].choice), testing::HasSubstr(" --cp 4"));
}

TEST(LayoutSearch, IsTheSameForAnyNumberOfThreadsAndSaysWhereItStopped) {
  const Hardware hardware = h100();
  const LayoutSearch one = search_layouts(recipe(), hardware, 6e9, {}, 3, 32, 1);
  const LayoutSearch four = search_layouts(recipe(), hardware, 6e9, {}, 3, 32, 4);
  EXPECT_EQ(one.evaluated, 32);
  EXPECT_EQ(four.evaluated, one.evaluated);
  ASSERT_EQ(one.layouts.size(), four.layouts.size());
  for (std::size_t i = 0; i < one.layouts.size(); ++i) EXPECT_EQ(one.layouts[i].choice, four.layouts[i].choice);
  EXPECT_EQ(one.complete, four.complete);
}

TEST(LayoutSearch, OfTooLittleMemoryFindsNothing) {
  EXPECT_TRUE(search_layouts(recipe(), h100(), 1e8, {}, 3, 1000, 2).layouts.empty());
  config::RunConfig wrong = recipe();
  wrong.model.num_attention_heads = 15;
  EXPECT_THROW(search_layouts(wrong, h100(), 80e9, {}, 3, 1000, 2), ConfigError);
}

TEST(Pareto, LeavesWhatIsBeatenInSpeedAndMemory) {
  const auto layout = [](int tp, double step_s, std::int64_t bytes) {
    FoundLayout found;
    found.choice.tp = tp;
    found.cost.step_s = step_s;
    found.memory.parameters = bytes;
    return found;
  };
  std::vector<int> kept;
  for (const FoundLayout& each :
       pareto({layout(1, 3, 10), layout(2, 1, 30), layout(3, 2, 30), layout(4, 2, 20), layout(5, 4, 10)}))
    kept.push_back(each.choice.tp);
  EXPECT_THAT(kept, testing::ElementsAre(2, 4, 1));
}

}  // namespace
}  // namespace megatron::plan
