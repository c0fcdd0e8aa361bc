#include "megatron/comm/processes/refusal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/processes/gloo_backend.h"

// Ranks of which some cannot start: all end for it long before their timeout, and say the same.
namespace megatron::comm {
namespace {

using std::chrono::milliseconds;
using testing::Each;
using testing::HasSubstr;
constexpr milliseconds kNever{600'000};  // a test that waits for it fails by its own timeout

/// What a rank comes to the meeting with; nothing: it can start.
using Start = std::optional<Problem>;

struct Meeting {
  bool launcher_keeps_store = true;
  std::string told = {};  ///< StoreServer::told_failure()
};

int free_port() {
  const StoreServer store;
  return store.port();
}

/// What the ranks throw: "agreed: …", "failed: …", "no peers: …".
std::vector<std::string> said(const std::vector<Start>& starts, Meeting& meeting) {
  std::optional<StoreServer> store;
  LaunchedRank place;
  if (meeting.launcher_keeps_store) store.emplace();
  place.port = store ? store->port() : free_port();
  place.store_is_kept = meeting.launcher_keeps_store;
  place.world_size = static_cast<int>(starts.size());
  std::vector<std::future<std::string>> ranks;
  for (place.rank = 0; place.rank < place.world_size; ++place.rank)
    ranks.push_back(std::async(std::launch::async, [place, start = starts[static_cast<std::size_t>(place.rank)]] {
      try {
        if (start) refuse_to_meet(place, *start, kNever);
        (void)join_gloo(place, kNever);
      } catch (const AgreedError& error) {
        return std::string("agreed: ") + error.what();
      } catch (const AgreedFailure& error) {
        return std::string("failed: ") + error.what();
      } catch (const PeerError& error) {
        return std::string("no peers: ") + error.what();
      }
      return std::string("met");
    }));
  std::vector<std::string> said;
  for (auto& rank : ranks) said.push_back(rank.get());
  place.rank = 0;
  if (store) meeting.told = store->told_failure(place);
  return said;
}

const Problem kWrongFile{.text = "no such file"}, kBadDisk{.text = "the disk fails", .is_config = false};

class Refusal : public testing::TestWithParam<bool> {
 protected:
  static std::vector<std::string> said_of(const std::vector<Start>& starts) {
    Meeting meeting{.launcher_keeps_store = GetParam()};
    return said(starts, meeting);
  }
};

TEST_P(Refusal, OfOneRankEndsAllWithItsReason) {
  for (std::size_t rank = 0; rank < 3; ++rank) {
    std::vector<Start> starts(3);
    starts[rank] = kWrongFile;
    EXPECT_THAT(said_of(starts), Each(concat("agreed: rank ", rank, ": no such file")));
    starts[rank] = kBadDisk;
    EXPECT_THAT(said_of(starts), Each(concat("failed: rank ", rank, ": the disk fails")));
  }
}

TEST_P(Refusal, OfSeveralRanksIsSaidWholeByAll) {
  EXPECT_THAT(said_of({kWrongFile, {}, kBadDisk}),
              Each(std::string("failed: rank 0: no such file\nrank 2: the disk fails")));
  EXPECT_THAT(said_of({{}, kWrongFile, kWrongFile}), Each(std::string("agreed: ranks 1, 2: no such file")));
}

TEST_P(Refusal, OfAllForOneReasonNamesNoRank) {
  EXPECT_THAT(said_of({kWrongFile, kWrongFile}), Each(std::string("agreed: no such file")));
}

INSTANTIATE_TEST_SUITE_P(Stores, Refusal, testing::Bool(),
                         [](const auto& p) { return p.param ? "OfALauncher" : "OfRankZero"; });

TEST(RefusalOfARank, IsTheFailureThatALauncherIsTold) {
  Meeting meeting;
  (void)said({{}, kBadDisk}, meeting);
  EXPECT_EQ(meeting.told, "rank 1 failed: the disk fails");
}

TEST(RefusalOfARank, WithoutAStoreIsAPeerError) {
  LaunchedRank place;
  place.rank = 1;
  place.world_size = 2;
  place.port = free_port();
  EXPECT_THROW(refuse_to_meet(place, kWrongFile, milliseconds(300)), PeerError);
}

TEST(Meeting, WhatFailsInItIsNotTold) {
  EXPECT_THROW(as_part_of_meeting([]() -> int { throw std::bad_alloc(); }), PeerError);
  EXPECT_THROW(as_part_of_meeting([]() -> int { throw ConfigError("wrong"); }), PeerError);
  EXPECT_THROW(as_part_of_meeting([]() -> int { throw AgreedError("wrong"); }), AgreedError);
  EXPECT_EQ(as_part_of_meeting([] { return 3; }), 3);
}

TEST(Problem, IsOfTheCommandOrOfTheMachine) {
  EXPECT_TRUE(problem_of(ConfigError("wrong")).is_config);
  EXPECT_FALSE(problem_of(std::runtime_error("failed")).is_config);
  EXPECT_EQ(problem_of(std::runtime_error("failed")).text, "failed");
  EXPECT_THAT(problem_of(std::bad_alloc()).text, HasSubstr("memory"));
  EXPECT_FALSE(problem_of(std::runtime_error("")).text.empty()) << "an empty text would be no problem";
}

}  // namespace
}  // namespace megatron::comm
