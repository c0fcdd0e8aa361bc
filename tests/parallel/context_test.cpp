#include "megatron/parallel/context.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "megatron/comm/local_backend.h"

namespace megatron::parallel {
namespace {

using plan::Axis;

/// The ranks that `group` joins, as its members tell each other.
std::vector<int> members(const comm::Group& group, int rank) {
  const at::Tensor names = group.all_gather(at::full({1}, rank, at::kInt));
  return {names.const_data_ptr<int>(), names.const_data_ptr<int>() + names.numel()};
}

TEST(ParallelContext, TalksToThePeersThatTheGridNames) {
  for (const std::string order : {"tp-cp-dp-pp", "tp-pp-dp-cp"}) {
    const plan::RankGrid grid(2, 1, 2, 2, 8, order);
    comm::run_ranks(8, [&](comm::Group world) {
      const ParallelContext context(grid, world, at::kCPU);
      for (const Axis axis : {Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp}) {
        EXPECT_EQ(members(context.group(axis), world.rank()), grid.peers(world.rank(), axis));
        EXPECT_EQ(context.group(axis).rank(), context.index(axis));
        EXPECT_EQ(context.is_first(axis), context.index(axis) == 0);
        EXPECT_EQ(context.is_last(axis), context.index(axis) == grid.size(axis) - 1);
      }
      EXPECT_EQ(members(context.model(), world.rank()), grid.peers(world.rank(), {Axis::Tp, Axis::Pp}));
    });
  }
}

TEST(ParallelContext, NamesItsRankForLogs) {
  comm::run_ranks(4, [](comm::Group world) {
    const ParallelContext context(plan::RankGrid(2, 1, 2, 1, 4), world, at::kCPU);
    if (world.rank() == 3) {
      EXPECT_EQ(context.name(), "rank 3 (tp 1, cp 0, dp 1, pp 0)");
    }
  });
}

TEST(ParallelContext, RefusesAWorldOfAnotherSize) {
  EXPECT_THROW(ParallelContext(plan::RankGrid(2, 1, 1, 1, 2), comm::Group(), at::kCPU), std::invalid_argument);
}

}  // namespace
}  // namespace megatron::parallel
