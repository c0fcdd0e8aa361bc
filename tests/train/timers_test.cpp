#include "megatron/train/log/timers.h"

#include <gtest/gtest.h>

#include "megatron/comm/threads/local_backend.h"

namespace megatron::train {
namespace {

TimesOverRanks example() {
  return {.timers = {TimerId::ForwardBackward, TimerId::EmbeddingGradsAllReduce, TimerId::ForwardRecv},
          .seconds = {{1.5, 0.25, 0.5}, {0, 0, 0}, {0, 0.125, 0}}};
}

// The format strings of Megatron-LM's timers, filled in by hand: names with dots to 48 columns, ms of a step.
TEST(Timers, ArePrintedAsMegatronPrintsThem) {
  EXPECT_EQ(timer_text(example(), "minmax", 10),
            "(min, max) time across ranks (ms):\n"
            "    forward-backward ...............................: (25.00, 150.00)\n"
            "    forward-recv ...................................: (12.50, 12.50)");
  EXPECT_EQ(timer_text(example(), "max", 10),
            "max time across ranks (ms):\n"
            "    forward-backward ...............................: 150.00\n"
            "    forward-recv ...................................: 12.50");
  EXPECT_EQ(timer_text(example(), "all", 10),
            "times across ranks (ms):\n"
            "  forward-backward:\n"
            "     rank  0: 150.00\n"
            "     rank  1: 25.00\n"
            "     rank  2: 50.00\n"
            "  forward-recv:\n"
            "     rank  1: 12.50");
  EXPECT_EQ(timer_text({.timers = {TimerId::Optimizer}, .seconds = {{0, 0}}}, "minmax", 1), "");
}

TEST(Timers, AreGatheredOverRanksAndBeginAnew) {
  comm::run_ranks(3, [](const comm::Group& world) {
    Timers timers(1, /*barrier=*/true, /*straggler=*/false, world);
    for (int i = 0; i < 2; ++i) {
      const auto timer = timers.time(TimerId::Optimizer);  // ranks meet
      timers.add(TimerId::OptimizerCountZeros, world.rank());
      timers.add(TimerId::ForwardCompute, 1);  // of level 2
    }
    const TimesOverRanks times = timers.take_step(world);
    ASSERT_EQ(times.timers.size(), 9u) << "those of level 1";
    for (std::size_t i = 0; i < times.timers.size(); ++i)
      for (std::size_t rank = 0; rank < 3; ++rank) {
        if (times.timers[i] == TimerId::Optimizer) {
          EXPECT_GT(times.seconds[i][rank], 0);
        } else {
          EXPECT_EQ(times.seconds[i][rank],
                    times.timers[i] == TimerId::OptimizerCountZeros ? 2.0 * static_cast<double>(rank) : 0);
        }
      }
    for (const auto& of_timer : timers.take_step(world).seconds)
      for (const double s : of_timer) EXPECT_EQ(s, 0);
  });
}

TEST(Timers, MeasureWhatTheirLevelSays) {
  for (const int level : {0, 1, 2}) {
    const Timers timers(level, false, false, {});
    EXPECT_EQ(timers.measures(TimerId::Optimizer), level >= 1);
    EXPECT_EQ(timers.measures(TimerId::ForwardCompute), level >= 2);
  }
  EXPECT_TRUE(Timers(0, false, /*straggler=*/true, {}).measures(TimerId::BackwardCompute));
}

}  // namespace
}  // namespace megatron::train
