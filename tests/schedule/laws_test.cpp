#include <gtest/gtest.h>

#include <algorithm>

#include "tests/schedule/shapes.h"

// What the papers say of their schedules, where forward, gradient of input and gradient of weights take one unit each.
namespace megatron::schedule {
namespace {

/// Time beyond what one rank computes.
double bubble_time(const Program& program) {
  const Timeline timeline = simulate(program);
  const int stages_a_rank = program.placement.num_stages() / program.placement.num_ranks();
  return timeline.makespan - (program.forward_only ? 1 : 3) * stages_a_rank * program.num_microbatches;
}

constexpr int kCounts[] = {1, 2, 3, 4, 5, 7, 8, 11, 16, 23, 31, 32, 33};

TEST(GPipe, FillsAndDrainsOnceAndKeepsEveryMicrobatch) {
  for (int p = 2; p <= 16; ++p)
    for (const int m : kCounts) {
      const Program program = generate("gpipe", {.num_ranks = p, .num_microbatches = m});
      EXPECT_DOUBLE_EQ(bubble_time(program), 3 * (p - 1));
      for (const int peak : simulate(program).peak_live) EXPECT_EQ(peak, m);
    }
}

TEST(OneFOneB, HasABubbleOfPMinus1OverMAndKeepsAtMostPMinusRank) {
  for (int p = 2; p <= 16; ++p)
    for (const int m : kCounts) {
      const Program program = generate("1f1b", {.num_ranks = p, .num_microbatches = m});
      const double ideal = 3 * m;
      EXPECT_DOUBLE_EQ(bubble_time(program) / ideal, static_cast<double>(p - 1) / m) << p << " " << m;
      const Timeline timeline = simulate(program);
      for (int rank = 0; rank < p; ++rank) EXPECT_EQ(timeline.peak_live[rank], std::min(p - rank, m));
    }
}

TEST(Interleaved, DividesTheBubbleByTheChunksForAnyCountOfAtLeastPMicrobatches) {
  for (int p = 2; p <= 12; ++p)
    for (int v = 2; v <= 4; ++v)
      for (const int m : kCounts) {
        if (m < p) continue;
        const double ideal = 3.0 * v * m;
        const Program program = generate("interleaved", {.num_ranks = p, .num_chunks = v, .num_microbatches = m});
        EXPECT_DOUBLE_EQ(bubble_time(program) / ideal, static_cast<double>(p - 1) / (v * m)) << p << v << m;
      }
}

TEST(Interleaved, KeepsAsManyAsItsWarmUpAndOneMore) {
  for (int p = 2; p <= 8; ++p)
    for (int v = 2; v <= 4; ++v)
      for (const int groups : {1, 2, 5}) {
        const Timeline timeline =
            simulate(generate("interleaved", {.num_ranks = p, .num_chunks = v, .num_microbatches = groups * p}));
        for (int rank = 0; rank < p; ++rank)
          EXPECT_EQ(timeline.peak_live[rank], std::min(2 * (p - rank - 1) + (v - 1) * p + 1, v * groups * p));
      }
}

TEST(ForwardOnly, FillsAndDrainsOnce) {
  for (int p = 1; p <= 12; ++p)
    for (int v = 1; v <= 4; ++v)
      for (const int m : kCounts)
        if (m >= p) {
          EXPECT_DOUBLE_EQ(bubble_time(forward_only({.num_ranks = p, .num_chunks = v, .num_microbatches = m})), p - 1);
        }
}

TEST(ForwardOnly, OnAVGoesDownAndUpOnce) {
  for (int p = 2; p <= 12; ++p)
    for (const int m : kCounts)
      EXPECT_DOUBLE_EQ(bubble_time(forward_only(Placement::v_shaped(p), m)), 2 * (p - 1)) << p << " " << m;
}

TEST(ZeroBubbleH1, HasAThirdOfTheOneFOneBBubbleAtTheSamePeakMemory) {
  for (int p = 2; p <= 16; ++p)
    for (const int m : kCounts) {
      const Shape shape{.num_ranks = p, .num_microbatches = m};
      const Program program = generate("zb-h1", shape);
      if (m >= p) {
        EXPECT_DOUBLE_EQ(3 * bubble_time(program), bubble_time(generate("1f1b", shape))) << p << " " << m;
      }
      EXPECT_LT(bubble_time(program), bubble_time(generate("1f1b", shape)));
      const int of_1f1b = simulate(generate("1f1b", shape)).peak_live[0];
      for (const int peak : simulate(program).peak_live) EXPECT_LE(peak, of_1f1b) << p << " " << m;
    }
}

TEST(ZeroBubbleV, HasNoBubbleInTheSteadyStateAtTheMemoryOfOneFOneB) {
  for (int p = 2; p <= 16; ++p)
    for (const int m : {2 * p - 1, 2 * p, 3 * p + 1, 5 * p}) {
      const Timeline timeline = simulate(generate("zb-v", {.num_ranks = p, .num_chunks = 2, .num_microbatches = m}));
      EXPECT_DOUBLE_EQ(timeline.makespan, 6 * m + p - 1) << p << " " << m;  // whatever m
      for (const int peak : timeline.peak_live) EXPECT_LE(peak, 2 * p);     // of half a 1F1B stage each
    }
}

TEST(ZeroBubbleV, RunsWithFewMicrobatchesAndIsFasterThanInterleaved) {
  for (int p = 2; p <= 16; ++p)
    for (int m = 1; m < 2 * p; ++m) {
      const Shape shape{.num_ranks = p, .num_chunks = 2, .num_microbatches = m};
      const Program program = generate("zb-v", shape);
      EXPECT_DOUBLE_EQ(bubble_time(program), std::max(p - 1, 4 * p - 2 - 2 * m)) << p << " " << m;
      EXPECT_LT(bubble_time(program), bubble_time(generate("interleaved", shape)));
      for (const int peak : simulate(program).peak_live) EXPECT_LE(peak, 2 * std::min(p, m));
    }
}

TEST(Generate, DeclaresThePeakOfLiveActivationsExactly) {
  for (int p = 1; p <= 12; ++p)
    for (int v = 1; v <= 3; ++v)
      for (const int m : kCounts)
        for (const Named& named : all_programs({.num_ranks = p, .num_chunks = v, .num_microbatches = m}))
          if (!named.program.forward_only) {
            EXPECT_EQ(named.program.max_live, simulate(named.program).peak_live)
                << named.name << " " << p << " " << v << " " << m;
          }
}

TEST(OneFOneB, LooksLikeTheTextbook) {
  EXPECT_EQ(picture(simulate(generate("1f1b", {.num_ranks = 4, .num_microbatches = 8}))),
            "0123......aa4bb5cc6dd7ee.ff.gg.hh\n"
            ".012....aa3bb4cc5dd6ee7ff.gg.hh..\n"
            "..01..aa2bb3cc4dd5ee6ff7gg.hh....\n"
            "...0aa1bb2cc3dd4ee5ff6gg7hh......\n");
}

TEST(ZeroBubbleH1, LooksLikeThePaper) {
  EXPECT_EQ(picture(simulate(generate("zb-h1", {.num_ranks = 4, .num_microbatches = 8}))),
            "0123...aw4bw5cw6dw7ewfwgwhw\n"
            ".012..a3bw4cw5dw6ew7fwgwhww\n"
            "..01.a2b3cw4dw5ew6fw7gwhwww\n"
            "...0a1b2c3dw4ew5fw6gw7hwwww\n");
}

TEST(Accumulate, KeepsOneMicrobatchAndIsNeverIdle) {
  const Timeline timeline = simulate(accumulate({.num_chunks = 3, .num_microbatches = 5}));
  EXPECT_DOUBLE_EQ(timeline.bubble, 0);
  EXPECT_EQ(timeline.peak_live[0], 3);
}

}  // namespace
}  // namespace megatron::schedule
