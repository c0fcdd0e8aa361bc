#include "megatron/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/plan/golden.h"

namespace megatron::optim {
namespace {

TEST(LossScaler, FollowsMegatronCoresTraceByTrace) {
  int compared = 0;
  for (const auto& example : golden("loss_scale.json")) {
    const auto& arguments = example["arguments"];
    LossScaler scaler({.initial = arguments["initial_scale"],
                       .min = arguments["min_scale"],
                       .growth = arguments["growth_factor"],
                       .backoff = arguments["backoff_factor"],
                       .window = arguments["growth_interval"],
                       .hysteresis = arguments["hysteresis"]});
    for (std::size_t i = 0; i < example["found_inf"].size(); ++i) {
      scaler.update(example["found_inf"][i] != 0);
      const auto& expected = example["trace"][i];
      EXPECT_EQ(scaler.state(), (LossScaler::State{expected[0], expected[1], expected[2]})) << "step " << i + 1;
      ++compared;
    }
  }
  EXPECT_GE(compared, 30);
}

TEST(LossScaler, BeginsAtTwoToTheThirtySecondAndGrowsAfterAThousandCleanSteps) {
  LossScaler scaler(LossScaler::Options{});
  EXPECT_EQ(scaler.scale(), std::exp2(32));
  for (int step = 0; step < 999; ++step) scaler.update(false);
  EXPECT_EQ(scaler.scale(), std::exp2(32));
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), std::exp2(33));
  scaler.update(true);  // the first of two that are allowed
  EXPECT_EQ(scaler.scale(), std::exp2(33));
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), std::exp2(32));
}

TEST(LossScaler, GoesOnFromItsStateAsIfItHadNotStopped) {
  LossScaler straight({.window = 3}), before({.window = 3});
  const bool steps[] = {true, false, true, false, false, false, false, true, true, false};
  for (int step = 0; step < 5; ++step) {
    straight.update(steps[step]);
    before.update(steps[step]);
  }
  LossScaler after({.window = 3});
  after.set_state(before.state());
  for (int step = 5; step < 10; ++step) {
    straight.update(steps[step]);
    after.update(steps[step]);
    EXPECT_EQ(after.state(), straight.state()) << "step " << step + 1;
  }
}

TEST(LossScaler, CanShrinkUntilItIsAtItsSmallest) {
  LossScaler scaler({.initial = 8, .min = 3, .window = 2, .hysteresis = 1});
  std::vector<bool> could;
  for (int step = 0; step < 4; ++step) {
    could.push_back(scaler.can_shrink());
    scaler.update(true);
  }
  EXPECT_EQ(could, (std::vector<bool>{true, true, false, false}));  // 8, 4, 3, 3
  scaler.update(false);
  scaler.update(false);
  EXPECT_TRUE(scaler.can_shrink()) << "it has grown";
  EXPECT_FALSE(LossScaler::constant(1024).can_shrink());
}

TEST(LossScaler, AConstantOneStaysWhateverHappens) {
  LossScaler scaler = LossScaler::constant(128);
  for (int step = 0; step < 2000; ++step) scaler.update(step < 10);
  scaler.set_state({.scale = 4, .clean_steps = 1, .hysteresis = 1});
  EXPECT_EQ(scaler.scale(), 128);
}

}  // namespace
}  // namespace megatron::optim
