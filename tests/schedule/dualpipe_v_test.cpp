#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/schedule/validate.h"
#include "tests/schedule/shapes.h"
#include "tests/testing/folders.h"

// DualPipeV as DeepSeek-AI's DualPipe has it: its order, and what its README says of bubble and memory.
namespace megatron::schedule {
namespace {

Program dualpipe_v_of(int p, int m) {
  return generate("dualpipev", {.num_ranks = p, .num_chunks = 2, .num_microbatches = m});
}

TEST(DualPipeV, IsTheOrderOfTheOriginal) {
  std::ifstream file(megatron::tests_folder() + "/golden/schedule/dualpipev.txt");
  int lines = 0;
  for (std::string text; std::getline(file, text); ++lines) {
    std::istringstream words(text.replace(text.find(':'), 1, ""));
    int p = 0, m = 0, rank = 0;
    words >> p >> m >> rank;
    std::vector<std::string> theirs, ours;
    for (std::string word; words >> word;) theirs.push_back(word);
    const Program program = dualpipe_v_of(p, m);
    for (const Op& op : program.ranks[static_cast<std::size_t>(rank)]) ours.push_back(to_string(op));
    EXPECT_EQ(ours, theirs) << p << " ranks, " << m << " microbatches, rank " << rank;
  }
  EXPECT_EQ(lines, 47);
}

TEST(DualPipeV, CanBeExecutedWithEachKindOfMessages) {
  for (int p = 1; p <= 12; ++p)
    for (const int m : {2 * p, 2 * p + 1, 3 * p + 2, 5 * p})
      for (const Communication how : kCommunications) EXPECT_NO_THROW(validate(lower(dualpipe_v_of(p, m), how)));
}

TEST(DualPipeV, KeepsPPPlusOneActivationsOnEveryRank) {
  for (int p = 1; p <= 16; ++p)
    for (const int m : {2 * p, 2 * p + 1, 3 * p + 2, 5 * p})
      for (const int peak : simulate(dualpipe_v_of(p, m)).peak_live) EXPECT_EQ(peak, 2 * p + 1) << p << " " << m;
}

/// The README: (PP/2 - 1) (F&B + B - 3W), PP stages on PP/2 ranks, B a whole backward.
TEST(DualPipeV, HasAtMostThePublishedBubble) {
  for (int p = 2; p <= 16; ++p)
    for (const int m : {2 * p, 3 * p + 1, 5 * p}) {
      const Program program = dualpipe_v_of(p, m);
      // Equal times and pairs one after the other: as where F&B takes no longer than B, since each half of a pair sets
      // out as soon as it is done.
      EXPECT_DOUBLE_EQ(simulate(program).makespan, 6 * m + (p - 1) * (2 + 2 - 3)) << p << " " << m;
      for (const auto& [f, i, w] : {std::array{2.0, 3.0, 2.0}, {3.0, 4.0, 1.0}, {1.0, 2.0, 0.5}, {2.0, 2.0, 3.0}}) {
        const auto stages = static_cast<std::size_t>(2 * p);
        Costs costs;
        costs.forward.assign(stages, f);
        costs.backward_input.assign(stages, i);
        costs.backward_weight.assign(stages, w);
        const double bubble = simulate(program, costs).makespan - 2 * m * (f + i + w);
        const double pair = f + i + w;  // one after the other
        EXPECT_LE(bubble, (p - 1) * (pair + i + w - 3 * w)) << p << " " << m << " " << f << " " << i << " " << w;
      }
    }
}

TEST(DualPipeV, SplitsTheBackwardsOfItsZeroBubbleSteps) {
  for (int p = 1; p <= 12; ++p)
    for (const int m : {2 * p, 3 * p + 1}) {
      const Program program = dualpipe_v_of(p, m);
      for (int rank = 0; rank < p; ++rank) {
        const auto& ops = program.ranks[static_cast<std::size_t>(rank)];
        const int split = (p - rank - 1) + (rank + 1) + (p - rank - 1);  // steps 3, 6 and 7
        const auto count = [&](Kind kind) { return std::ranges::count(ops, kind, &Op::kind); };
        EXPECT_EQ(count(Kind::Forward), 2 * m);
        EXPECT_EQ(count(Kind::BackwardInput), split);
        EXPECT_EQ(count(Kind::BackwardWeight), split);
        EXPECT_EQ(count(Kind::Backward), 2 * m - split);
      }
    }
}

/// DualPipe's README draws 4 ranks and 10 microbatches; pairs that overlap there follow one another here.
TEST(DualPipeV, LooksLikeThePublishedFigure) {
  EXPECT_EQ(picture(simulate(dualpipe_v_of(4, 10))),
            "01234560aw1bw2cw37dd4aa8ee5bb9ff6ccgg7.ddhh8.eeii9.ffjjgwhwiwjw\n"
            ".01234051aw2bw36cc4aa7dd5bb8ee6cc9ff7ddgg8.eehh9.ffiiggjhwiwjww\n"
            "..01203142aw35bb4aa6cc5bb7dd6cc8ee7dd9ff8eegg9.ffhhggiihjiwjwww\n"
            "...001122334aa4aa5bb5bb6cc6cc7dd7dd8ee8ee9ff9ffgggghhhhiijjwwww\n");
}

TEST(DualPipeV, NeedsTwoMicrobatchesForEachRank) {
  EXPECT_NO_THROW(dualpipe_v_of(4, 8));
  EXPECT_THAT([] { dualpipe_v_of(4, 7); },
              testing::ThrowsMessage<ConfigError>(testing::AllOf(
                  testing::HasSubstr("schedule dualpipev has at least 2 microbatches per pipeline rank"),
                  testing::HasSubstr("got:  7 microbatches, 4 pipeline ranks\n  fix:  --schedule interleaved"))));
}

}  // namespace
}  // namespace megatron::schedule
