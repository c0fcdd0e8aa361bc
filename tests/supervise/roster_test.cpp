#include "megatron/supervise/ranks/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace megatron::supervise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

Roster three_hosts() { return {{"a", {0, 1}}, {"b", {2, 3}}, {"c", {4, 5}}}; }

TEST(Roster, GroupsByHostTheKeepersFirst) {
  EXPECT_EQ(roster_of({{0, "a"}, {1, "b"}, {2, "a"}, {3, "b"}}, 0), (Roster{{"a", {0, 2}}, {"b", {1, 3}}}));
  EXPECT_EQ(roster_of({{1, "a"}, {2, "b"}, {3, "b"}, {5, "c"}}, 3), (Roster{{"b", {3, 2}}, {"a", {1}}, {"c", {5}}}));
}

TEST(Roster, HeirsAreOnOtherHostsFirst) {
  EXPECT_THAT(heirs_of(three_hosts()), ElementsAre(Pair(2, "b"), Pair(4, "c"), Pair(1, "a")));
  EXPECT_THAT(heirs_of({{"a", {0, 1, 2, 3, 4}}}), ElementsAre(Pair(1, "a"), Pair(2, "a"), Pair(3, "a")));
  EXPECT_THAT(heirs_of({{"a", {0}}}), IsEmpty());
}

TEST(Roster, MoreThanHalfOfTheHostsGoOn) {
  EXPECT_TRUE(may_continue(three_hosts(), {0, 1, 2}, {}));
  EXPECT_FALSE(may_continue(three_hosts(), {4, 5}, {}));
  EXPECT_TRUE(may_continue(three_hosts(), {2, 4}, {0})) << "0's host has said that it has ended";
  EXPECT_FALSE(may_continue(three_hosts(), {4, 5}, {0})) << "the second host may still run, with the first's";
  const Roster two = {{"a", {0, 1, 2}}, {"b", {3}}};
  EXPECT_TRUE(may_continue(two, {0}, {})) << "of halves that with the first";
  EXPECT_FALSE(may_continue(two, {3}, {})) << "the first may live, cut off";
  EXPECT_TRUE(may_continue(two, {3}, {0}));
  EXPECT_TRUE(may_continue(two, {1, 3}, {0})) << "a host of which another is left";
}

// Whatever way a network is divided, at most one part continues where nobody has died.
TEST(Roster, AtMostOnePartGoesOn) {
  std::mt19937 draw(7);
  for (int hosts = 1; hosts <= 7; ++hosts)
    for (int trial = 0; trial < 200; ++trial) {
      Roster roster;
      std::vector<std::set<int>> parts(3);
      int rank = 0, continuing = 0;
      for (int h = 0; h < hosts; ++h) {
        RosterHost host{std::to_string(h), {}};
        auto& part = parts[draw() % parts.size()];
        for (auto more = draw() % 3 + 1; more > 0; --more) {
          host.ranks.push_back(rank);
          part.insert(rank++);
        }
        roster.push_back(host);
      }
      for (const auto& part : parts) continuing += !part.empty() && may_continue(roster, part, {}) ? 1 : 0;
      ASSERT_LE(continuing, 1) << hosts;
    }
}

TEST(Roster, SeatsFollowHostsAndLeaveOutWhoFails) {
  const Roster left = {{"b", {3, 2}}, {"a", {0, 1}}};
  EXPECT_THAT(seats_of(left, {}, 3), ElementsAre(3, 2, 0));
  EXPECT_THAT(seats_of(left, {2}, 3), ElementsAre(3, 0, 1));
  EXPECT_THAT(seats_of(left, {2}, 4), ElementsAre(3, 0, 1)) << "as many as there are";
  LaunchedRank store;
  store.address = "b";
  store.port = 7;
  std::vector<std::vector<int>> places;
  for (int i = 0; i < 3; ++i) {
    const LaunchedRank seat = seat_at(left, {3, 0, 1}, i, store);
    EXPECT_EQ(seat.address, "b");
    EXPECT_EQ(seat.port, 7);
    places.push_back({seat.rank, seat.world_size, seat.local_rank, seat.local_size});
  }
  EXPECT_THAT(places, ElementsAre(ElementsAre(0, 3, 0, 1), ElementsAre(1, 3, 0, 2), ElementsAre(2, 3, 1, 2)));
}

TEST(Roster, OrdersTravelAsMessages) {
  StartOrder order{.attempt = 3, .restarts = 2, .roster = three_hosts(), .words = {"--tp", "2"}};
  LaunchedRank store;
  store.address = "10.0.0.1";
  store.port = 29500;
  store.store_is_kept = true;
  order.seat = seat_at(order.roster, {0, 2, 3}, 2, store);
  const auto back = order_in(order_message(order));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->attempt, 3);
  EXPECT_EQ(back->restarts, 2);
  EXPECT_EQ(back->roster, order.roster);
  EXPECT_EQ(back->words, order.words);
  EXPECT_FALSE(back->is_spare);
  ASSERT_TRUE(back->seat);
  EXPECT_EQ(environment_of(*back->seat), environment_of(*order.seat));
  const auto spare = order_in(order_message({.attempt = 4, .is_spare = true}));
  ASSERT_TRUE(spare);
  EXPECT_TRUE(spare->is_spare);
  EXPECT_FALSE(spare->seat);
  for (const char* other : {"", "stop 1", "{}", "[1]", R"({"start":"1"})", R"({"start":1,"restarts":0,"hosts":[[1]]})"})
    EXPECT_FALSE(order_in(other)) << other;
}

}  // namespace
}  // namespace megatron::supervise
