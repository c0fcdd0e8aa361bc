#include "megatron/plan/learning_rate.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"
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

TEST(LearningRateSchedule, RefusesStylesItDoesNotKnow) {
  EXPECT_THROW(lr_decay_of("cosin"), ConfigError);
  EXPECT_THROW(wsd_decay_of(""), ConfigError);
}

}  // namespace
}  // namespace megatron::plan
