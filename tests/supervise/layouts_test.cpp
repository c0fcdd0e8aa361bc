#include "megatron/supervise/layouts.h"

#include <gtest/gtest.h>

#include "megatron/config/options.h"
#include "megatron/plan/rules.h"

namespace megatron::supervise {
namespace {

config::RunConfig four_heads(int tp, int pp, std::int64_t global_batch) {
  config::RunConfig config;
  config.model.num_layers = 4;
  config.model.hidden_size = 64;
  config.model.num_attention_heads = 4;
  config.model.vocab_size = 320;
  config.data.seq_length = 32;
  config.parallel.tp = tp;
  config.parallel.pp = pp;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = global_batch;
  return config;
}

bool rules_allow(const config::RunConfig& config) { return plan::broken_rules(config).empty(); }

TEST(Layouts, KeepsTheModelsSplitWhereItCan) {
  const auto smaller = smaller_layout(four_heads(2, 1, 24), 8, 1, rules_allow);  // dp was 4
  ASSERT_TRUE(smaller);
  EXPECT_EQ(smaller->ranks, 6);
  EXPECT_EQ(smaller->config.parallel.tp, 2);
  EXPECT_EQ(smaller->config.train.global_batch_size, 24);
}

TEST(Layouts, TakesAsManyRanksAsTheRulesAllow) {
  // 3 ranks: the batch of 8 samples is no multiple of 2 x 3, 4 heads are none of 3, nor are 4 layers.
  const auto smaller = smaller_layout(four_heads(1, 1, 8), 4, 1, rules_allow);
  ASSERT_TRUE(smaller);
  EXPECT_EQ(smaller->ranks, 2);
  EXPECT_EQ(smaller->config.parallel.tp * smaller->config.parallel.pp, 1);
}

TEST(Layouts, SharesSequencesBetweenFewerRanks) {
  config::RunConfig config = four_heads(1, 1, 8);
  config.parallel.cp = 4;
  const auto smaller = smaller_layout(config, 4, 1, rules_allow);
  ASSERT_TRUE(smaller);
  EXPECT_EQ(smaller->ranks, 2);
  EXPECT_EQ(smaller->config.parallel.cp, 2);
}

TEST(Layouts, SplitsAPipelineLessWhereTheRanksAreTooFew) {
  const auto smaller = smaller_layout(four_heads(2, 2, 8), 4, 1, rules_allow);
  ASSERT_TRUE(smaller);
  EXPECT_EQ(smaller->ranks, 2);
  EXPECT_EQ(smaller->config.parallel.tp, 2) << "as it was";
  EXPECT_EQ(smaller->config.parallel.pp, 1);
}

TEST(Layouts, BalancesAPipelineOfUnequalStagesAgain) {
  config::RunConfig config = four_heads(1, 4, 8);
  config.parallel.pp_layout = "E|t|t*2|tL";
  const auto smaller = smaller_layout(config, 4, 1, rules_allow);
  ASSERT_TRUE(smaller);
  EXPECT_EQ(smaller->ranks, 3);
  EXPECT_EQ(smaller->config.parallel.pp, 3);
  EXPECT_EQ(smaller->config.parallel.pp_layout, "balanced");
  config::RunConfig typed = config;
  config::parse_words(config::fields_of(typed), smaller->words, "");
  EXPECT_EQ(config::save_toml(typed), config::save_toml(smaller->config));
}

TEST(Layouts, HasNoneBelowTheFewestRanks) {
  EXPECT_FALSE(smaller_layout(four_heads(1, 1, 8), 4, 3, rules_allow));
  EXPECT_FALSE(smaller_layout(four_heads(1, 1, 8), 1, 1, rules_allow));
}

TEST(Layouts, ItsWordsSayWhatItsConfigurationSays) {
  config::RunConfig config = four_heads(2, 2, 8);
  config.parallel.sp = true;
  config.parallel.dp = 1;
  const auto smaller = smaller_layout(
      config, 4, 1, [](const config::RunConfig& c) { return c.parallel.world_size == 1 && rules_allow(c); });
  ASSERT_TRUE(smaller);
  config::RunConfig typed = config;
  config::parse_words(config::fields_of(typed), smaller->words, "");
  EXPECT_EQ(config::save_toml(typed), config::save_toml(smaller->config));
  EXPECT_FALSE(typed.parallel.sp);
}

}  // namespace
}  // namespace megatron::supervise
