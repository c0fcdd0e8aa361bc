#include "megatron/parallel/context.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "megatron/comm/threads/local_backend.h"

namespace megatron::parallel {
namespace {

using plan::Axis;

/// The ranks that `group` joins, as its members tell each other.
std::vector<int> members(const comm::Group& group, int rank) {
  const at::Tensor names = group.all_gather(at::full({1}, rank, at::kInt));
  return {names.const_data_ptr<int>(), names.const_data_ptr<int>() + names.numel()};
}

TEST(ParallelContext, TalksToThePeersThatTheGridNames) {
  for (const auto& [cp, dp] : {std::pair{1, 2}, {2, 1}, {2, 2}})
    for (const std::string order : {"tp-cp-dp-pp", "tp-pp-dp-cp"}) {
      const plan::RankGrid grid(2, cp, dp, 2, 4 * cp * dp, order);
      comm::run_ranks(grid.world_size(), [&](comm::Group world) {
        const ParallelContext context(grid, world, at::kCPU);
        const auto expect = [&](const comm::Group& group, const std::vector<Axis>& axes) {
          const std::vector<int> peers = grid.peers(world.rank(), axes);
          EXPECT_EQ(members(group, world.rank()), peers);
          EXPECT_EQ(peers.at(static_cast<std::size_t>(group.rank())), world.rank());
        };
        expect(context.tensor(), {Axis::Tp});
        expect(context.pipeline(), {Axis::Pp});
        expect(context.model(), {Axis::Tp, Axis::Pp});
        expect(context.samples(), {Axis::Dp});
        expect(context.sequence(), {Axis::Cp});
        expect(context.gradients(), {Axis::Cp, Axis::Dp});
        expect(context.loss(), {Axis::Cp, Axis::Dp});
        expect(context.state(true), {Axis::Cp, Axis::Dp});
        EXPECT_EQ(context.state(false).size(), 1);
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
