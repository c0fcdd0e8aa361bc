#include "megatron/plan/ranks/copies.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace megatron::plan {
namespace {

int distance_of(int tp, int cp, int dp, int pp, const ExpertLayout& experts, const char* order = "tp-cp-dp-pp") {
  return copy_distance(RankRoles(RankGrid(tp, cp, dp, pp, tp * cp * dp * pp, order), experts));
}

TEST(Copies, AreNextToOneAnotherUnlessTheyShareExperts) {
  EXPECT_EQ(distance_of(2, 1, 1, 2, {}), 0) << "there is one";
  EXPECT_EQ(distance_of(2, 2, 3, 2, {}), 1);
  EXPECT_EQ(distance_of(1, 1, 4, 1, {.ep = 2}), 2);
  EXPECT_EQ(distance_of(1, 1, 4, 1, {.ep = 4}), 0) << "all ranks hold one copy of the experts";
  EXPECT_EQ(distance_of(1, 2, 4, 1, {.ep = 2}), 1) << "experts are divided between ranks with the same samples";
  EXPECT_EQ(distance_of(1, 2, 4, 1, {.ep = 4}), 2);
  EXPECT_EQ(distance_of(2, 1, 4, 2, {.ep = 2, .etp = 1}), 1);
  EXPECT_EQ(distance_of(2, 1, 4, 2, {.ep = 4, .etp = 1}), 2);
}

// Whatever ranks do together but for sums over other samples, the ranks further on do together, in the same order.
TEST(Copies, DoTheSameTogether) {
  const std::vector<RankRoles::Role> roles = {
      [](const RankRoles& r, int rank) { return r.tensor(rank); },
      [](const RankRoles& r, int rank) { return r.tensor(rank, Weights::Experts); },
      [](const RankRoles& r, int rank) { return r.pipeline(rank); },
      [](const RankRoles& r, int rank) { return r.sequence(rank); },
      [](const RankRoles& r, int rank) { return r.experts(rank); }};
  int found = 0;
  for (const char* order : {"tp-cp-dp-pp", "tp-cp-pp-dp", "cp-tp-dp-pp"})
    for (const int tp : {1, 2})
      for (const int cp : {1, 2})
        for (const int dp : {2, 3, 4, 6})
          for (const int pp : {1, 2})
            for (int ep = 1; ep <= cp * dp; ++ep) {
              const bool mixes_stages = ep > 1 && pp > 1 && order == std::string("tp-cp-pp-dp");  // which is refused
              if (cp * dp % ep != 0 || mixes_stages) continue;
              const RankGrid grid(tp, cp, dp, pp, tp * cp * dp * pp, order);
              const RankRoles of(grid, {.ep = ep});
              const int distance = copy_distance(of);
              if (distance == 0) continue;
              ++found;
              ASSERT_EQ(dp % distance, 0);
              const std::vector<int> further = ranks_further(of, distance);
              for (int rank = 0; rank < grid.world_size(); ++rank) {
                const int next = further[static_cast<std::size_t>(rank)];
                ASSERT_NE(next, rank);
                ASSERT_EQ(of.samples(next).index, (of.samples(rank).index + distance) % dp);
                for (const RankRoles::Role& role : roles) {
                  const Peers here = role(of, rank), there = role(of, next);
                  ASSERT_EQ(here.index, there.index);
                  for (std::size_t i = 0; i < here.ranks.size(); ++i)
                    ASSERT_EQ(further[static_cast<std::size_t>(here.ranks[i])], there.ranks.at(i));
                }
              }
            }
  EXPECT_GT(found, 100);
}

}  // namespace
}  // namespace megatron::plan
