#include "megatron/comm/activity.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "megatron/comm/threads/local_backend.h"

namespace megatron::comm {
namespace {

TEST(Activity, KnowsTheLastCollectiveOfEachRank) {
  run_ranks(4, [](const Group& ranks) {
    Activity activity;
    const Group world = observed(ranks, activity);
    EXPECT_EQ(world.rank(), ranks.rank());
    EXPECT_EQ(world.size(), 4);
    const at::Tensor x = at::ones({2});
    world.all_reduce(x);
    EXPECT_EQ(x[0].item<float>(), 4);
    world.barrier();
    EXPECT_EQ(activity.state().collective, "barrier");
    EXPECT_EQ(activity.state().group, "0 1 2 3");
    EXPECT_EQ(activity.state().number, 1U);
    const Group pair = world.split({{0, 2}, {1, 3}});
    const std::uint64_t before = activity.state().operations;
    const WorkHandle work = pair.all_reduce_async(x);
    EXPECT_EQ(activity.state().group, ranks.rank() % 2 == 0 ? "0 2" : "1 3");
    EXPECT_EQ(activity.state().number, 0U);
    EXPECT_FALSE(activity.state().waits);
    work->wait();
    EXPECT_FALSE(activity.state().waits);
    EXPECT_EQ(activity.state().operations, before + 3) << "begun, waited for, ended";
    if (pair.rank() == 0)
      pair.send(x, 1);
    else
      pair.recv(x, 0);
    EXPECT_EQ(activity.state().group, ranks.rank() % 2 == 0 ? "0 to 2" : "1 to 3");
    world.barrier();  // no rank ends while another needs it
  });
}

TEST(Activity, KnowsWhatARankWaitsFor) {
  run_ranks(2, [](const Group& ranks) {
    static Activity first;  // rank 1 asks what rank 0 does
    if (ranks.rank() == 0) {
      observed(ranks, first).barrier();
      return;
    }
    while (!first.state().waits) continue;
    EXPECT_EQ(first.state().collective, "barrier");
    ranks.barrier();
  });
}

TEST(Activity, AGroupOfOneTellsNothing) {
  Activity activity;
  const Group alone = observed(Group(), activity);
  alone.barrier();
  EXPECT_EQ(activity.state().operations, 0U);
}

TEST(Activity, APhaseEndsTheOperationBefore) {
  Activity activity;
  activity.begin_phase("step", 7);
  activity.begin_operation("F0.1");
  EXPECT_EQ(activity.state().operation, "F0.1");
  activity.begin_phase("saving", 7);
  EXPECT_EQ(activity.state().operation, "");
  EXPECT_EQ(activity.state().operations, 3U);
}

}  // namespace
}  // namespace megatron::comm
