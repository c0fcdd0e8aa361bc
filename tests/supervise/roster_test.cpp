#include "megatron/supervise/ranks/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "megatron/base/error.h"

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

TEST(Roster, ADeadKeepersHostIsNoFirst) {
  const Roster two = {{"a", {0, 1}}, {"b", {2, 3}}};
  EXPECT_TRUE(may_continue(two, {2, 3}, {0}));
  EXPECT_FALSE(may_continue(two, {1}, {0})) << "those have gone on";
  EXPECT_TRUE(may_continue(two, {1, 2}, {0}));
  EXPECT_FALSE(may_continue(two, {1}, {})) << "the first may live";
}

TEST(Roster, AHostOfWhichOneMayLiveCounts) {
  EXPECT_TRUE(may_continue(three_hosts(), {0}, {2, 3})) << "half with the first";
  EXPECT_FALSE(may_continue(three_hosts(), {0}, {2})) << "3 may be with the third host, more than half";
  EXPECT_TRUE(may_continue(three_hosts(), {3, 4}, {}));
}

/// What supervisors of a part can know of `dead`: the one that decides of anybody, the others of that one alone.
std::set<int> known_of(const std::set<int>& dead, const std::set<int>& part, int keeper, std::mt19937& draw) {
  std::set<int> known;
  for (const int rank : dead)
    if ((part.contains(keeper) || rank == keeper) && draw() % 4 != 0) known.insert(rank);
  return known;
}

// Whatever way a network is divided, and whoever has died before, at most one part continues.
TEST(Roster, AtMostOnePartGoesOn) {
  std::mt19937 draw(7);
  for (int hosts = 1; hosts <= 7; ++hosts)
    for (int trial = 0; trial < 2000; ++trial) {
      const unsigned deaths = draw() % 4;  // of four
      Roster roster;
      std::vector<std::set<int>> parts(draw() % 2 + 2);
      std::set<int> dead;
      int rank = 0, continuing = 0;
      for (int h = 0; h < hosts; ++h) {
        RosterHost host{std::to_string(h), {}};
        auto& part = parts[draw() % parts.size()];
        for (auto more = draw() % 3 + 1; more > 0; --more) {
          (draw() % 4 < deaths ? dead : part).insert(rank);
          host.ranks.push_back(rank++);
        }
        roster.push_back(host);
      }
      for (const auto& part : parts)
        continuing += !part.empty() && may_continue(roster, part, known_of(dead, part, 0, draw)) ? 1 : 0;
      ASSERT_LE(continuing, 1) << hosts << " hosts, trial " << trial;
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

// A message has 63 KiB; hosts of a launcher that counts host by host, or host after host for each next rank.
TEST(Roster, OrdersOfManyRanksFitAMessage) {
  constexpr int kHosts = 1250, kRanks = 8;
  for (const bool is_block : {true, false}) {
    StartOrder order{.attempt = 1};
    for (int h = 0; h < kHosts; ++h) {
      RosterHost host{concat("10.100.", 100 + h / 100, ".", 100 + h % 100), {}};
      for (int r = 0; r < kRanks; ++r) host.ranks.push_back(is_block ? h * kRanks + r : r * kHosts + h);
      order.roster.push_back(host);
    }
    std::ranges::rotate(order.roster.front().ranks, order.roster.front().ranks.begin() + 3);  // it is the keeper's
    const std::string message = order_message(order);
    EXPECT_LT(message.size(), std::size_t{63} << 10);
    ASSERT_TRUE(order_in(message));
    EXPECT_EQ(order_in(message)->roster, order.roster);
  }
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
  for (const char* other : {"", "stop 1", "{}", "[1]", R"({"start":"1"})", R"({"start":1,"restarts":0,"hosts":[[1]]})",
                            R"({"start":1,"restarts":0,"spare":true,"words":[],"hosts":[["a",[[0,2000000,0]]]]})"})
    EXPECT_FALSE(order_in(other)) << other;
}

}  // namespace
}  // namespace megatron::supervise
