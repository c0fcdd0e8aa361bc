#include "megatron/plan/steps/learning_rate.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/plan/rules.h"
#include "megatron/plan/steps/weight_decay.h"
#include "tests/plan/golden.h"

namespace megatron::plan {
namespace {

TEST(LearningRateSchedule, EqualsMegatronCoresToTheLastBit) {
  int compared = 0;
  for (const auto& example : golden("schedules.json")) {
    const auto& given = example["arguments"];
    const LearningRateSchedule schedule{.warmup_init = given["init_lr"],
                                        .peak = given["max_lr"],
                                        .min = given["min_lr"],
                                        .warmup_samples = given["lr_warmup_steps"],
                                        .decay_samples = given["lr_decay_steps"],
                                        .decay = lr_decay_of(given["lr_decay_style"]),
                                        .wsd_samples = given.value("wsd_decay_steps", 0),
                                        .wsd_decay = wsd_decay_of(given.value("lr_wsd_decay_style", "exponential"))};
    for (const auto& row : example["trace"]) {
      EXPECT_EQ(schedule.at(row[0]), row[1].get<double>()) << given << " at " << row[0];
      ++compared;
    }
  }
  EXPECT_GE(compared, 500);
}

TEST(LearningRateSchedule, IsTheLeastFromTheFirstSampleAfterTheDecayOn) {
  for (const LrDecay decay : {LrDecay::Linear, LrDecay::Cosine, LrDecay::InverseSquareRoot, LrDecay::Wsd}) {
    const LearningRateSchedule schedule{
        .peak = 1, .min = 0.1, .warmup_samples = 10, .decay_samples = 60, .decay = decay, .wsd_samples = 20};
    EXPECT_GT(schedule.at(59), 0.1) << static_cast<int>(decay);
    for (const std::int64_t after : {61, 62, 1000}) EXPECT_EQ(schedule.at(after), 0.1) << static_cast<int>(decay);
  }
}

// Megatron-LM: warm-up 0.33 x 56 = 18.48 samples, then linear to the end of the decay.
TEST(LearningRateSchedule, TakesAShareOfTheDecayAsItIs) {
  config::RunConfig config;
  config.model.vocab_size = 100;
  config.train.train_iters = 7;
  config.train.global_batch_size = 8;
  config.schedule.lr = 3e-3;
  config.schedule.min_lr = 3e-4;
  config.schedule.lr_decay_style = "linear";
  config.schedule.lr_warmup_fraction = 0.33;
  const LearningRateSchedule rate = resolve(config).learning_rate;
  EXPECT_DOUBLE_EQ(rate.at(8), 3e-3 * 8 / 18.48);
  EXPECT_DOUBLE_EQ(rate.at(16), 3e-3 * 16 / 18.48);
  EXPECT_DOUBLE_EQ(rate.at(24), 3e-4 + 2.7e-3 * (1 - (24 - 18.48) / (56 - 18.48)));
  config.schedule.lr_decay_style = "constant";
  EXPECT_DOUBLE_EQ(resolve(config).learning_rate.at(24), 3e-3);
}

// OptimizerParamScheduler.get_wd() of Megatron-LM, after so many samples.
TEST(WeightDecaySchedule, EqualsMegatronCoresToTheLastBit) {
  WeightDecaySchedule schedule{.start = 0.01, .end = 0.1, .samples = 96};
  for (const auto& [samples, decay] : {std::pair{0, 0.01},
                                       {8, 0.0175},
                                       {48, 0.05500000000000001},
                                       {56, 0.06250000000000001},
                                       {88, 0.0925},
                                       {96, 0.1},
                                       {104, 0.1}})
    EXPECT_EQ(schedule.at(samples), decay) << samples;
  schedule.growth = WeightDecayGrowth::Cosine;
  for (const auto& [samples, decay] : {std::pair{0, 0.01},
                                       {8, 0.011533337816991932},
                                       {48, 0.05500000000000001},
                                       {56, 0.06664685702961345},
                                       {88, 0.09846666218300808},
                                       {96, 0.1},
                                       {104, 0.1}})
    EXPECT_EQ(schedule.at(samples), decay) << samples;
}

TEST(WeightDecaySchedule, GrowsOverTheRunUnlessToldOtherwise) {
  config::RunConfig config;
  config.model.vocab_size = 100;
  config.train.train_iters = 7;
  config.train.global_batch_size = 8;
  EXPECT_FALSE(resolve(config).rates_at(8).weight_decay) << "the optimizer's own";
  config.schedule.weight_decay_incr_style = "linear";
  config.schedule.start_weight_decay = 0.1;
  config.schedule.end_weight_decay = 0.8;
  EXPECT_DOUBLE_EQ(*resolve(config).rates_at(8).weight_decay, 0.2);
  config.schedule.weight_decay_incr_samples = 16;
  EXPECT_DOUBLE_EQ(*resolve(config).rates_at(8).weight_decay, 0.45);
  EXPECT_DOUBLE_EQ(*resolve(config).rates_at(17).weight_decay, 0.8);
}

TEST(LearningRateSchedule, RefusesStylesItDoesNotKnow) {
  EXPECT_THROW(weight_decay_growth_of("constant"), ConfigError);
  EXPECT_THROW(lr_decay_of("cosin"), ConfigError);
  EXPECT_THROW(wsd_decay_of(""), ConfigError);
}

}  // namespace
}  // namespace megatron::plan
