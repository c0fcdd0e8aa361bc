#include "megatron/plan/cost/recomputation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/plan/cost/cost_model.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/pipeline_plan.h"
#include "tests/plan/load_hardware.h"
#include "tests/testing/folders.h"

namespace megatron::plan {
namespace {

using Method = LayerRecomputation::Method;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string groups_text(const LayerRecomputation& recomputation, const StageSpec& part, std::int64_t encoder = 0,
                        bool partial = false) {
  std::string text;
  for (const LayerGroup& group : layer_groups(recomputation, part, encoder, partial))
    text += std::to_string(group.first) + "-" + std::to_string(group.last) + (group.again ? "* " : " ");
  return text;
}

StageSpec stage(std::int64_t first, std::int64_t layers) { return {.first_layer = first, .num_layers = layers}; }

TEST(LayerGroups, AreEqualButForTheLastOrTheFirstOnesSingly) {
  const auto text = [](const LayerRecomputation& recomputation, std::int64_t layers) {
    return groups_text(recomputation, stage(0, layers));
  };
  EXPECT_EQ(text({}, 4), "0-4 ");
  EXPECT_EQ(text({.method = Method::Uniform, .num_layers = 3}, 7), "0-3* 3-6* 6-7* ");
  EXPECT_EQ(text({.method = Method::Uniform, .num_layers = 0}, 2), "0-1* 1-2* ");
  EXPECT_EQ(text({.method = Method::Block, .num_layers = 2}, 4), "0-1* 1-2* 2-4 ");
  EXPECT_EQ(text({.method = Method::Block, .num_layers = 9}, 2), "0-1* 1-2* ");
  EXPECT_EQ(text({}, 0) + text({.method = Method::Uniform}, 0), "");
}

TEST(LayerGroups, OfAListAreThoseOfTheStage) {
  const LayerRecomputation some{.method = Method::Listed, .listed = listed_layers("1-2,5,7", 8)};
  EXPECT_EQ(groups_text(some, stage(0, 4)), "0-1 1-2* 2-3* 3-4 ");
  EXPECT_EQ(groups_text(some, stage(4, 4)), "0-1 1-2* 2-3 3-4* ");
  EXPECT_EQ(groups_text(some, stage(3, 2)), "0-2 ");
  EXPECT_EQ(groups_text(some, stage(8, 0)), "");
  EXPECT_EQ(groups_text(some, stage(0, 4), 0, /*partial=*/true), "0-4 ");
}

TEST(LayerGroups, EndWhereADecoderBegins) {
  EXPECT_EQ(groups_text({}, stage(0, 6), 2), "0-2 2-6 ");
  EXPECT_EQ(groups_text({.method = Method::Uniform, .num_layers = 3}, stage(1, 5), 3), "0-2* 2-3* 3-5* ");
  EXPECT_EQ(groups_text({.method = Method::Listed, .listed = listed_layers("3", 6)}, stage(0, 6), 2),
            "0-2 2-3 3-4* 4-6 ");
}

TEST(ListedLayers, AreNumbersRangesAndSteps) {
  const auto again = [](const std::string& text) { return text_of_layers(listed_layers(text, 12)); };
  EXPECT_EQ(again("nothing"), "nothing");
  EXPECT_EQ(again("3"), "3");
  EXPECT_EQ(again("0-3,8,10-11"), "0-3,8,10-11");
  EXPECT_EQ(again("8,1-2,0,2-3"), "0-3,8");
  EXPECT_EQ(again("0-11:4"), "0,4,8");
  EXPECT_EQ(again("0-11"), "0-11");
  EXPECT_EQ(again("1-3:9223372036854775807"), "1");
  for (const char* bad :
       {"", "x", "3-", "-3", "4-2", "1,,2", "1,", "0-4:0", "1:2", "0-3:1:1", " 1", "99999999999999999999"})
    EXPECT_THAT([&] { again(bad); }, ThrowsMessage<ConfigError>(HasSubstr("such as 0-3,8,12-22:2"))) << bad;
  EXPECT_THAT([&] { again("2-12"); }, ThrowsMessage<ConfigError>(HasSubstr("from 0 to 11")));
  EXPECT_THAT([&] { again(std::string(1 << 17, '1')); }, ThrowsMessage<ConfigError>(HasSubstr("65536 characters")));
}

config::RunConfig small() {
  config::RunConfig config;
  config.model.num_layers = 8;
  config.model.vocab_size = 4096;
  config.train.global_batch_size = 8;
  config.train.recompute = "full";
  config.parallel.pp = config.parallel.world_size = 4;
  return config;
}

std::vector<MemoryPlan> memory_of(const ResolvedRun& run) {
  const auto timeline = schedule::simulate(pipeline_program(run, run.microbatches_per_step),
                                           stage_costs(run.config, run.shape, run.parts));
  std::vector<MemoryPlan> plans;
  for (int rank = 0; rank < run.placement.num_ranks(); ++rank)
    plans.push_back(memory_plan(run, 0, rank, {timeline, rank}));
  return plans;
}

/// Every list of layers that keeps the limit, by trying each: the fewest of each rank.
std::vector<std::int64_t> fewest_by_search(const config::RunConfig& config, double limit_gb) {
  std::vector<std::int64_t> fewest;
  for (unsigned set = 0; set < 1U << 8; ++set) {
    std::vector<bool> listed(8);
    for (unsigned l = 0; l < 8; ++l) listed[l] = (set >> l & 1U) != 0;
    config::RunConfig with = config;
    with.train.recompute_layers = text_of_layers(listed);
    const ResolvedRun run = resolve(with);
    const auto plans = memory_of(run);
    fewest.resize(plans.size(), 99);
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      if (static_cast<double>(plans[rank].total()) > limit_gb * 1e9) continue;
      std::int64_t count = 0;
      for (const StageSpec& part : parts_of_rank(run.parts, run.placement, static_cast<int>(rank)))
        for (std::int64_t l = part.first_layer; l < part.first_layer + part.num_layers; ++l)
          count += listed[static_cast<std::size_t>(l)] ? 1 : 0;
      fewest[rank] = std::min(fewest[rank], count);
    }
  }
  return fewest;
}

/// What the rank that holds most needs, with these layers recomputed.
double largest_gb(config::RunConfig config, const char* layers) {
  config.train.recompute_layers = layers;
  double most = 0;
  for (const MemoryPlan& plan : memory_of(resolve(config))) most = std::max(most, static_cast<double>(plan.total()));
  return most / 1e9;
}

TEST(RecomputedLayers, ThatFitAreTheFewestOfEachRank) {
  const std::vector<std::function<void(config::RunConfig&)>> changes{
      [](auto&) {}, [](auto& c) { c.parallel.pp = c.parallel.world_size = 2, c.parallel.vpp = 2; },
      [](auto& c) { c.parallel.pp_layout = "Et|ttt|ttt|tL"; },
      [](auto& c) { c.parallel.pp = c.parallel.world_size = 1; },
      [](auto& c) { c.parallel.pp = c.parallel.world_size = 2, c.parallel.pp_schedule = "gpipe"; }};
  for (const auto& change : changes) {
    config::RunConfig config = small();
    change(config);
    const double least = largest_gb(config, "0-7"), most = largest_gb(config, "nothing");
    ASSERT_LT(least, most);
    for (const double share : {0.0, 0.3, 0.6, 1.0}) {
      const double limit = least + share * (most - least) + 1e-9;
      const auto fewest = fewest_by_search(config, limit);
      config::RunConfig fit = config;
      fit.train.recompute_layers = "fit";
      fit.train.memory_limit_gb = limit;
      const ResolvedRun run = resolve(fit);
      const auto listed = listed_layers(run.config.train.recompute_layers, 8);
      const auto plans = memory_of(run);
      for (std::size_t rank = 0; rank < plans.size(); ++rank) {
        EXPECT_LE(static_cast<double>(plans[rank].total()), limit * 1e9);
        std::int64_t count = 0;
        for (const StageSpec& part : parts_of_rank(run.parts, run.placement, static_cast<int>(rank)))
          for (std::int64_t l = part.first_layer; l < part.first_layer + part.num_layers; ++l)
            count += listed[static_cast<std::size_t>(l)] ? 1 : 0;
        EXPECT_EQ(count, fewest[rank]) << "rank " << rank << ", " << run.config.train.recompute_layers;
      }
      EXPECT_NO_THROW(resolve(run.config)) << "what is resolved keeps its limit";
    }
  }
}

// Balanced with the costs of the layers that are recomputed in the end, the stages would be others.
TEST(RecomputedLayers, ThatFitBalancedStagesKeepThem) {
  config::RunConfig config = small();
  config.parallel.pp_layout = "balanced";
  const double least = largest_gb(config, "0-7"), most = largest_gb(config, "nothing");
  config.train.recompute_layers = "fit";
  int listed = 0;
  for (const double share : {0.1, 0.4, 0.7}) {
    config.train.memory_limit_gb = least + share * (most - least) + 1e-9;
    const ResolvedRun run = resolve(config);
    listed += run.config.train.recompute_layers != "nothing" ? 1 : 0;
    EXPECT_NE(run.config.parallel.pp_layout, "balanced");
    EXPECT_EQ(resolve(run.config).parts, run.parts);
  }
  EXPECT_GT(listed, 0);
}

/// What resolves `config` again, as a saved recipe does, is the same pipeline.
void expect_the_same_again(const ResolvedRun& run) {
  const ResolvedRun again = resolve(run.config);
  EXPECT_EQ(again.parts, run.parts);
  EXPECT_EQ(again.schedule_name, run.schedule_name);
  EXPECT_EQ(again.placement, run.placement);
  EXPECT_EQ(config::save_toml(again.config), config::save_toml(run.config));
}

// With other costs another schedule would be chosen, or other numbers of stages.
TEST(RecomputedLayers, ThatFitKeepTheScheduleThatWasChosen) {
  config::RunConfig config = small();
  config.parallel.pp = config.parallel.world_size = 2;
  config.parallel.pp_schedule = "auto";
  config.parallel.microbatch_group_size = 2;
  config.parallel.pp_memory_limit = std::int64_t{1} << 40;
  const double least = largest_gb(config, "0-7"), most = largest_gb(config, "nothing");
  config.train.recompute_layers = "fit";
  for (const double share : {0.1, 0.6}) {
    config.train.memory_limit_gb = std::min(least, most) + share * std::abs(most - least) + 1e-9;
    const ResolvedRun run = resolve(config);
    EXPECT_EQ(run.config.parallel.pp_schedule, run.schedule_name);
    EXPECT_EQ(run.config.parallel.vpp, std::ssize(run.parts) / 2);
    expect_the_same_again(run);
  }
}

TEST(RecomputedLayers, ThatFitBalancedStagesOfAT5KeepThem) {
  for (const int split : {0, 2}) {
    config::RunConfig config = small();
    config.model.architecture = "t5";
    config.model.num_layers = 6;
    config.model.position_embedding_type = "relative";
    config.data.decoder_seq_length = 32;
    config.parallel.pp_layout = "balanced";
    config.parallel.pipeline_split_rank = split;
    const double least = largest_gb(config, "0-11"), most = largest_gb(config, "nothing");
    ASSERT_LT(least, most);
    config.train.recompute_layers = "fit";
    for (const double share : {0.1, 0.6}) {
      config.train.memory_limit_gb = least + share * (most - least) + 1e-9;
      const ResolvedRun run = resolve(config);
      EXPECT_NE(run.config.parallel.pp_layout, "balanced");
      expect_the_same_again(run);
    }
  }
}

/// Whose recomputation keeps no less, but holds what it makes again besides.
config::RunConfig one_layer_a_rank() {
  config::RunConfig config = small();
  config.model.num_layers = 2;
  config.parallel.pp = config.parallel.world_size = 2;
  config.parallel.pp_schedule = "zb-h1";
  config.model.vocab_size = 50257;
  return config;
}

TEST(RecomputedLayers, AreNoneWhereThatAloneKeepsTheLimit) {
  config::RunConfig config = one_layer_a_rank();
  const double without = largest_gb(config, "nothing");
  ASSERT_LT(without, largest_gb(config, "0-1"));
  config.train.recompute_layers = "fit";
  config.train.memory_limit_gb = without + 1e-9;
  EXPECT_EQ(resolve(config).config.train.recompute_layers, "nothing");
}

/// The limit that an error offers, which must do.
void expect_offered_limit_fits(config::RunConfig config) {
  const std::string flag = "--train.memory_limit_gb ", message = broken_rules(config);
  const std::size_t at = message.find(flag);
  ASSERT_NE(at, std::string::npos) << message;
  config.train.memory_limit_gb = std::stod(message.substr(at + flag.size()));
  EXPECT_EQ(broken_rules(config), "");
}

TEST(RecomputedLayers, ThatCannotFitAreRefusedWithTheLimitThatCould) {
  config::RunConfig config = small();
  config.train.recompute_layers = "fit";
  EXPECT_THAT([&] { resolve(config); }, ThrowsMessage<ConfigError>(HasSubstr("needs train.memory_limit_gb")));
  config.train.memory_limit_gb = 0.001;
  EXPECT_THAT([&] { resolve(config); }, ThrowsMessage<ConfigError>(HasSubstr("with every layer recomputed")));
  expect_offered_limit_fits(config);
  config.train.recompute_layers = "nothing";
  EXPECT_THAT([&] { resolve(config); },
              ThrowsMessage<ConfigError>(testing::AllOf(HasSubstr("must hold what a rank's plan needs"),
                                                        HasSubstr("fix:  --train.memory_limit_gb 0.0"))));
  expect_offered_limit_fits(config);
}

TEST(RecomputedLayers, AreNoAdviceForALimitWhereTheyHoldMore) {
  config::RunConfig config = one_layer_a_rank();
  const double without = largest_gb(config, "nothing");
  ASSERT_LT(without, largest_gb(config, "0-1"));
  config.train.memory_limit_gb = without / 2;
  config.train.recompute_layers = "fit";
  EXPECT_THAT(broken_rules(config), HasSubstr(concat("--train.memory_limit_gb ", std::ceil(without * 1000) / 1000)));
  expect_offered_limit_fits(config);
  config.train.recompute_layers = "";
  config.train.recompute = "none";
  EXPECT_THAT(broken_rules(config), testing::Not(HasSubstr("fit ")));
  EXPECT_THAT(broken_rules(config), testing::Not(testing::EndsWith("recompute_layers fit")));
  expect_offered_limit_fits(config);
}

TEST(RecomputedLayers, AreAdviceForALimitWithAsMuchAsTheyNeed) {
  config::RunConfig config = small();
  const double least = largest_gb(config, "0-7"), most = largest_gb(config, "nothing");
  ASSERT_LT(least, most);
  config.train.recompute_layers = "";
  config.train.recompute = "none";
  const std::string fit = ", or --train.recompute full --train.recompute_layers fit";
  config.train.memory_limit_gb = (least + most) / 2;
  EXPECT_THAT(broken_rules(config), testing::EndsWith(fit));
  config.train.memory_limit_gb = least / 2;
  const std::string message = broken_rules(config), flag = fit + " --train.memory_limit_gb ";
  const std::size_t at = message.find(flag);
  ASSERT_NE(at, std::string::npos) << message;
  config.train.recompute = "full";
  config.train.recompute_layers = "fit";
  config.train.memory_limit_gb = std::stod(message.substr(at + flag.size()));
  EXPECT_NEAR(config.train.memory_limit_gb, least, 0.001);
  EXPECT_EQ(broken_rules(config), "");
}

TEST(RecomputedLayers, CostTheOperationsOfTheirForwardPassAlone) {
  const Hardware hardware = load_hardware(tests_folder() + "/../configs/hardware/dgx-h100.toml");
  const auto flops = [&](const char* layers) {
    config::RunConfig config = small();
    config.parallel.device = "cuda";
    config.train.dtype = "bf16";
    config.train.recompute_layers = layers;
    return step_cost(resolve(config), hardware).computed_flops;
  };
  const double none = flops("nothing"), all = flops("");
  EXPECT_GT(all, none);
  EXPECT_NEAR(flops("0-7:2"), (none + all) / 2, 1e-9 * all);
  EXPECT_DOUBLE_EQ(flops("0-7"), all);
}

}  // namespace
}  // namespace megatron::plan
