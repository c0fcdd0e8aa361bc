#include "megatron/supervise/spikes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace megatron::supervise {
namespace {

TEST(Spikes, AreAboveAMultipleOfTheMedian) {
  SpikeWatch watch(2, 3);
  EXPECT_FALSE(watch.is_spike(1e9)) << "nothing to compare with";
  for (const double loss : {4., 2., 3.}) watch.add(loss);
  EXPECT_EQ(watch.median(), 3);
  EXPECT_FALSE(watch.is_spike(6));
  EXPECT_TRUE(watch.is_spike(6.001));
}

TEST(Spikes, AreToldByTheLastLossesAlone) {
  SpikeWatch watch(2, 3);
  for (const double loss : {100., 100., 100., 1., 1., 1.}) watch.add(loss);
  EXPECT_EQ(watch.losses(), (std::vector<double>{1, 1, 1}));
  EXPECT_TRUE(watch.is_spike(3));
}

TEST(Spikes, WhatIsNotFiniteCountsAsNone) {
  SpikeWatch watch(2, 2);
  for (const double loss : {1., std::nan(""), double{INFINITY}, 1.}) watch.add(loss);
  EXPECT_EQ(watch.losses(), (std::vector<double>{1, 1}));
}

TEST(Spikes, AResumedRunTellsTheSame) {
  SpikeWatch watch(1.5, 4), resumed(1.5, 4);
  for (int i = 0; i < 6; ++i) watch.add(5 - 0.1 * i);
  resumed.set_losses(watch.losses());
  for (const double loss : {6.9, 7., 7.1}) EXPECT_EQ(resumed.is_spike(loss), watch.is_spike(loss)) << loss;
}

}  // namespace
}  // namespace megatron::supervise
