#include "megatron/plan/ranks/rank_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <unordered_set>

#include "megatron/base/error.h"
#include "tests/plan/golden.h"

namespace megatron::plan {
namespace {

using Groups = std::vector<std::vector<int>>;
using testing::HasSubstr;

schedule::Placement looped(const RankGrid& grid) { return schedule::Placement::looped(grid.size(Axis::Pp), 1); }

/// Calls `check(grid)` for every layout of every world of up to 64 ranks, in the given order of axes.
template <class F>
void for_all_small_worlds(const std::string& order, F&& check) {
  for (int world = 1; world <= 64; ++world)
    for (int tp = 1; tp <= world; ++tp)
      for (int cp = 1; tp * cp <= world; ++cp)
        for (int dp = 1; tp * cp * dp <= world; ++dp)
          if (world % (tp * cp * dp) == 0) check(RankGrid(tp, cp, dp, world / (tp * cp * dp), world, order));
}

TEST(RankGrid, LaysOutTheSixteenRankExample) {
  const RankGrid grid(2, 1, 2, 4, 16);
  EXPECT_EQ(grid.groups({Axis::Tp}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(grid.groups({Axis::Dp}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(grid.groups({Axis::Pp}), (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(grid.groups({Axis::Tp, Axis::Pp}), (Groups{{0, 1, 4, 5, 8, 9, 12, 13}, {2, 3, 6, 7, 10, 11, 14, 15}}));
  EXPECT_EQ(grid.embedding_groups(looped(grid)), (Groups{{0, 12}, {1, 13}, {2, 14}, {3, 15}}));
  EXPECT_EQ(grid.position_embedding_groups(looped(grid)), (Groups{{0}, {1}, {2}, {3}}));
}

TEST(RankGrid, HasTheGroupsThatMegatronCoreBuilds) {
  const std::vector<std::pair<std::string, std::vector<Axis>>> kinds = {
      {"tp", {Axis::Tp}},
      {"pp", {Axis::Pp}},
      {"cp", {Axis::Cp}},
      {"dp", {Axis::Dp}},
      {"dp_cp", {Axis::Dp, Axis::Cp}},
      {"tp_pp", {Axis::Tp, Axis::Pp}},
      {"tp_dp", {Axis::Tp, Axis::Dp}},
      {"tp_dp_cp", {Axis::Tp, Axis::Dp, Axis::Cp}},
      {"tp_cp", {Axis::Tp, Axis::Cp}},
  };
  const auto sorted = [](Groups groups) {
    for (auto& group : groups) std::sort(group.begin(), group.end());
    std::sort(groups.begin(), groups.end());
    return groups;
  };
  for (const auto& example : golden("groups.json")) {
    const auto& layout = example["layout"];
    const int world = example["world"], tp = layout.value("tensor_model_parallel_size", 1);
    const int pp = layout.value("pipeline_model_parallel_size", 1), cp = layout.value("context_parallel_size", 1);
    std::string order = layout.value("order", "tp-cp-ep-dp-pp");
    order.erase(order.find("-ep"), 3);  // experts are 1 in the dense grid
    const RankGrid grid(tp, cp, world / (tp * pp * cp), pp, world, order);
    for (const auto& [name, axes] : kinds)
      EXPECT_EQ(grid.groups(axes), sorted(example["groups"][name].get<Groups>())) << layout << " " << name;
    EXPECT_EQ(sorted(grid.embedding_groups(looped(grid))), sorted(example["groups"]["embedding"].get<Groups>()))
        << layout;
    EXPECT_EQ(sorted(grid.position_embedding_groups(looped(grid))),
              sorted(example["groups"]["position_embedding"].get<Groups>()));
  }
}

TEST(RankGrid, SharesTheEmbeddingWithinARankWherePipelinesEndAtTheirStart) {
  const RankGrid grid(2, 1, 1, 3, 6);
  const auto v_shaped = schedule::Placement::v_shaped(3);
  EXPECT_EQ(grid.embedding_groups(v_shaped), (Groups{{0}, {1}}));
  EXPECT_EQ(grid.position_embedding_groups(v_shaped), (Groups{{0}, {1}}));
  EXPECT_EQ(grid.embedding_groups(schedule::Placement::looped(3, 4)), (Groups{{0, 4}, {1, 5}}));
  const schedule::Placement backwards({2, 1, 0});
  EXPECT_EQ(grid.embedding_groups(backwards), (Groups{{0, 4}, {1, 5}}));
  EXPECT_EQ(grid.position_embedding_groups(backwards), (Groups{{4}, {5}}));
}

TEST(RankGrid, NumbersEveryPlaceOnce) {
  for (const char* order : {"tp-cp-dp-pp", "pp-dp-cp-tp", "dp-tp-pp-cp"})
    for_all_small_worlds(order, [](const RankGrid& grid) {
      for (int rank = 0; rank < grid.world_size(); ++rank) {
        const Coord coord = grid.coord_of(rank);
        for (const Axis axis : {Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp}) {
          ASSERT_GE(coord[static_cast<std::size_t>(axis)], 0);
          ASSERT_LT(coord[static_cast<std::size_t>(axis)], grid.size(axis));
        }
        ASSERT_EQ(grid.rank_of(coord), rank);
      }
    });
}

TEST(RankGrid, PartitionsTheWorldAlongEverySetOfAxes) {
  const std::vector<Axis> all = {Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp};
  for_all_small_worlds("tp-cp-dp-pp", [&](const RankGrid& grid) {
    for (unsigned mask = 0; mask < 16; ++mask) {
      std::vector<Axis> axes;
      std::size_t size = 1;
      for (unsigned k = 0; k < 4; ++k)
        if (mask >> k & 1) {
          axes.push_back(all[k]);
          size *= static_cast<std::size_t>(grid.size(all[k]));
        }
      std::unordered_set<int> seen;
      for (const auto& group : grid.groups(axes)) {
        ASSERT_EQ(group.size(), size);
        for (const int rank : group) ASSERT_TRUE(seen.insert(rank).second);
        ASSERT_EQ(grid.peers(group.back(), axes), group);
      }
      ASSERT_EQ(seen.size(), static_cast<std::size_t>(grid.world_size()));
    }
  });
}

TEST(RankGrid, GivesPeersInTheOrderOfTheirAxis) {
  for_all_small_worlds("tp-cp-dp-pp", [](const RankGrid& grid) {
    const int last = grid.world_size() - 1;
    for (const Axis axis : {Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp}) {
      const std::vector<int> peers = grid.peers(last, axis);
      for (std::size_t k = 0; k < peers.size(); ++k)
        ASSERT_EQ(grid.coord_of(peers[k])[static_cast<std::size_t>(axis)], static_cast<int>(k));
    }
  });
}

std::string error_of(int tp, int cp, int dp, int pp, int world, const std::string& order = "tp-cp-dp-pp") {
  try {
    RankGrid(tp, cp, dp, pp, world, order);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(RankGrid, SaysWhatFitsAWorldOfTheWrongSize) {
  EXPECT_EQ(error_of(2, 1, 2, 4, 8),
            "parallel.*: tp*cp*dp*pp must equal the world size.\n"
            "  got:  tp=2 cp=1 dp=2 pp=4 (product 16), world size 8\n"
            "  fix:  --dp 1 (to use all 8), or --world-size 16");
  // No dp uses all of 7 ranks, so none is suggested.
  EXPECT_THAT(error_of(2, 1, 2, 1, 7), testing::EndsWith("fix:  --world-size 4"));
}

TEST(RankGrid, RefusesSizesThatAreNotPositiveOrOverflow) {
  for (const int bad : {0, -1, 1 << 30})
    for (int position = 0; position < 4; ++position) {
      std::array<int, 4> sizes = {1, 1, 1, 1};
      sizes[static_cast<std::size_t>(position)] = bad;
      EXPECT_THAT(error_of(sizes[0], sizes[1], sizes[2], sizes[3], 1), HasSubstr("must equal the world size"));
    }
  EXPECT_THAT(error_of(1 << 16, 1 << 16, 1, 1, 0), HasSubstr("must equal the world size"));
}

TEST(RankGrid, RefusesAnOrderThatLeavesAnAxisOut) {
  for (const char* order :
       {"", "tp-cp-dp", "tp-cp-dp-dp", "tp-cp-dp-pp-ep", "tp,cp,dp,pp", "tp-cp-dp-pp-", "-tp-cp-dp"})
    EXPECT_THAT(error_of(1, 1, 1, 1, 1, order), HasSubstr("once each")) << order;
}

}  // namespace
}  // namespace megatron::plan
