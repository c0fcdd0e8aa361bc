#include "megatron/plan/parameters/parameter_groups.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

TEST(Patterns, MatchWithAnyNumberOfStars) {
  for (const auto& [pattern, name] : std::vector<std::pair<std::string, std::string>>{
           {"*", ""},
           {"*", "abc"},
           {"abc", "abc"},
           {"a*c", "abc"},
           {"a*c", "ac"},
           {"*.bias", "layers.0.fc1.bias"},
           {"decoder.*.linear_*.weight", "decoder.layers.11.mlp.linear_fc1.weight"},
           {"*ab*ab", "abxabyab"},
           {"a**b", "ab"}})
    EXPECT_TRUE(matches(pattern, name)) << pattern << " " << name;
  for (const auto& [pattern, name] : std::vector<std::pair<std::string, std::string>>{
           {"", "a"}, {"abc", "abcd"}, {"abcd", "abc"}, {"a*c", "abd"}, {"*.bias", "bias"}, {"*ab*ab", "abxa"}})
    EXPECT_FALSE(matches(pattern, name)) << pattern << " " << name;
}

TEST(ParameterGroups, DecayMatricesAloneUnlessTold) {
  const std::vector<ParameterSpec> specs = {{.name = "a.weight", .shape = {2, 2}},
                                            {.name = "a.bias", .shape = {2}, .weight_decay = false}};
  config::OptimizerConfig config;
  EXPECT_EQ(multipliers(config, specs), (std::vector<Multipliers>{{1, 1}, {1, 0}}));
  config.wd_mult = {"*=3", "*.weight=0.5"};
  config.lr_mult = {"*.bias=2"};
  EXPECT_EQ(multipliers(config, specs), (std::vector<Multipliers>{{1, 0.5}, {2, 3}}));
}

// In Megatron-Core they are a buffer, which no optimizer sees.
TEST(ParameterGroups, LeaveOutWhatARouterChoosesBy) {
  const std::vector<ParameterSpec> specs = {
      {.name = "decoder.layers.0.mlp.router.weight", .shape = {2, 2}},
      {.name = "decoder.layers.0.mlp.router.expert_bias", .shape = {2}, .weight_decay = false}};
  config::OptimizerConfig config;
  config.wd_mult = {"*=1", "*expert_bias=2"};
  config.lr_mult = {"*=3"};
  EXPECT_EQ(multipliers(config, specs), (std::vector<Multipliers>{{3, 1}, {1, 0}}));
  EXPECT_THROW(check_patterns(config, specs), ConfigError);
  config.wd_mult = {"*=1"};
  EXPECT_NO_THROW(check_patterns(config, specs));
}

// Megatron-LM's get_mup_config_overrides, by kind of parameter.
TEST(ParameterGroups, ScaleWithTheWidth) {
  const std::vector<ParameterSpec> specs = {
      {.name = "embedding.word_embeddings.weight", .shape = {4, 2}},
      {.name = "embedding.position_embeddings.weight", .shape = {4, 2}},
      {.name = "decoder.layers.0.mlp.linear_fc1.weight", .shape = {2, 2}},
      {.name = "decoder.layers.0.mlp.linear_fc1.bias", .shape = {2}, .weight_decay = false},
      {.name = "output_layer.weight", .shape = {4, 2}}};
  const auto rates = [&](const char* name, bool decoupled = false) {
    config::OptimizerConfig config;
    config.name = name;
    config.lr_mult = {"decoder.*.weight=2"};
    std::vector<double> all;
    for (const Multipliers& own : multipliers(config, specs, 4, decoupled)) all.push_back(own.learning_rate);
    return all;
  };
  EXPECT_EQ(rates("adam"), (std::vector<double>{1, 1, 0.5, 1, 1}));
  EXPECT_EQ(rates("lion"), (std::vector<double>{1, 1, 0.5, 1, 1}));
  EXPECT_EQ(rates("muon"), (std::vector<double>{1, 1, 2, 1, 1}));
  EXPECT_EQ(rates("sgd"), (std::vector<double>{4, 4, 2, 4, 4}));
  EXPECT_EQ(rates("sgd", true), (std::vector<double>{1, 4, 2, 4, 1}));
  config::OptimizerConfig adam;
  EXPECT_EQ(multipliers(adam, specs, 4)[2].eps, 0.25);
  EXPECT_EQ(multipliers(adam, specs, 4)[4].eps, 1);
}

TEST(ParameterGroups, RefuseAPatternThatMatchesNoParameterOfTheWholeModel) {
  const std::vector<ParameterSpec> whole = {{.name = "a.weight", .shape = {1}},
                                            {.name = "b.layers.0.bias", .shape = {1}}};
  config::OptimizerConfig config;
  config.lr_mult = {"a.*=2", "*.layers.*=1"};
  config.wd_mult = {"*.bias=1"};
  EXPECT_NO_THROW(check_patterns(config, whole));
  config.wd_mult = {"*.bias=1", "bias=1"};
  try {
    check_patterns(config, whole);
    FAIL() << "taken";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("optimizer.wd_mult"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("'bias'"), std::string::npos) << e.what();
  }
}

TEST(ParameterGroups, RefuseWhatIsNoPatternAndNumber) {
  for (const char* entry : {"", "a", "=1", "a=", "a=x", "a=1x", "a=-1", "a=nan", "a=inf", "a=1e999"}) {
    config::OptimizerConfig config;
    config.lr_mult = {entry};
    EXPECT_THROW(multipliers(config, {}), ConfigError) << entry;
  }
}

}  // namespace
}  // namespace megatron::plan
