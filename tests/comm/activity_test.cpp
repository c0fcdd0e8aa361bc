#include "megatron/comm/activity.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "megatron/comm/threads/local_backend.h"

namespace megatron::comm {
namespace {

std::string last_of(const Activity& activity) {
  const Activity::State state = activity.state();
  const Activity::GroupState& last = *state.last();
  return last.name + " [" + last.ranks + "] " + last.collective + " " + std::to_string(last.number);
}

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
    EXPECT_EQ(last_of(activity), "world [0 1 2 3] barrier 2");
    const Group pair = world.split({{0, 2}, {1, 3}});
    name_observed(pair, "data");
    const std::uint64_t before = activity.state().operations;
    const WorkHandle work = pair.all_reduce_async(x);
    const bool even = ranks.rank() % 2 == 0;
    EXPECT_EQ(last_of(activity), even ? "data [0 2] all_reduce 1" : "data [1 3] all_reduce 1");
    EXPECT_FALSE(activity.state().waits);
    work->wait();
    EXPECT_FALSE(activity.state().waits);
    EXPECT_EQ(activity.state().operations, before + 3) << "begun, waited for, ended";
    if (pair.rank() == 0)
      pair.send(x, 1);
    else
      pair.recv(x, 0);
    EXPECT_EQ(activity.state().last()->ranks, even ? "0 to 2" : "1 to 3");
    EXPECT_EQ(activity.state().last()->number, 1U) << "counted alike on both sides";
    world.barrier();  // no rank ends while another needs it
  });
}

TEST(Activity, TellsWhoIsBehindAlsoWhereOthersHaveLeftTheGroup) {
  run_ranks(2, [](const Group& ranks) {
    static Activity activities[2];
    Activity& mine = activities[ranks.rank()];
    const Group world = observed(ranks, mine), pair = world.split({{0, 1}});
    name_observed(pair, "tensor");
    const at::Tensor x = at::ones({2});
    pair.all_reduce(x);
    WorkHandle early;
    if (ranks.rank() == 0) {  // rank 1 has not come there yet
      early = pair.all_reduce_async(x);
      world.barrier();
    } else {
      world.barrier();
    }
    ranks.barrier();
    const auto number = [](const Activity& activity, std::size_t group) {
      return activity.state().groups[group].number;
    };
    EXPECT_EQ(activities[0].state().groups[1].name, "tensor");
    EXPECT_EQ(number(activities[0], 0), number(activities[1], 0));
    EXPECT_EQ(number(activities[0], 1), 2U);
    EXPECT_EQ(number(activities[1], 1), 1U);
    ranks.barrier();
    if (ranks.rank() == 1) pair.all_reduce(x);
    if (early) early->wait();
    ranks.barrier();
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
    EXPECT_EQ(first.state().last()->collective, "barrier");
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
