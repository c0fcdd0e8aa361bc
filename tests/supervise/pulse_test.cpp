#include "megatron/supervise/pulse.h"

#include <gtest/gtest.h>

namespace megatron::supervise {
namespace {

Pulse::Clock::time_point at(double seconds) {
  return Pulse::Clock::time_point(
      std::chrono::duration_cast<Pulse::Clock::duration>(std::chrono::duration<double>(seconds)));
}

Heartbeat beat(double unix_s, const char* phase, std::int64_t operations) {
  return {.unix_s = unix_s, .phase = phase, .operations = operations};
}

TEST(Pulse, StopsWhereNoOperationBeginsOrEnds) {
  Pulse pulse(5);
  pulse.start(std::nullopt, at(0));
  EXPECT_FALSE(pulse.has_stopped(beat(1, "step", 3), at(1)));
  EXPECT_FALSE(pulse.has_stopped(beat(5, "step", 3), at(5.9)));
  EXPECT_TRUE(pulse.has_stopped(beat(6, "step", 3), at(6.1))) << "it beats, but does nothing";
  EXPECT_FALSE(pulse.has_stopped(beat(6, "step", 4), at(6.2)));
  EXPECT_TRUE(pulse.has_stopped(beat(6, "step", 4), at(11.3))) << "not even a heartbeat";
}

TEST(Pulse, WaitsLongerWhereFilesAreRead) {
  for (const char* phase : {"starting", "loading", "rolling back"}) {
    Pulse pulse(5);
    pulse.start(std::nullopt, at(0));
    EXPECT_FALSE(pulse.has_stopped(beat(1, phase, 0), at(1)));
    EXPECT_FALSE(pulse.has_stopped(beat(2, phase, 0), at(50.9))) << phase;
    EXPECT_TRUE(pulse.has_stopped(beat(2, phase, 0), at(51.1))) << phase;
  }
}

TEST(Pulse, WhatIsThereOfTheJobBeforeDoesNotCount) {
  Pulse pulse(5);
  const Heartbeat before = beat(100, "step", 7);
  pulse.start(before, at(0));
  EXPECT_FALSE(pulse.has_stopped(before, at(49.9))) << "the new one has not begun to beat";
  EXPECT_TRUE(pulse.has_stopped(before, at(50.1)));
  EXPECT_FALSE(pulse.has_stopped(beat(101, "step", 7), at(50.2))) << "as many operations, of another job";
}

}  // namespace
}  // namespace megatron::supervise
