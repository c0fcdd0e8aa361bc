#include "megatron/comm/processes/presence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/processes/refusal.h"

// Ranks that end before all have met: those that wait for them learn it long before their timeout.
namespace megatron::comm {
namespace {

using std::chrono::milliseconds;
using testing::Each;
using testing::HasSubstr;
constexpr milliseconds kNever{600'000};  // a test that waits for it fails by its own timeout

int free_port() {
  const StoreServer store;
  return store.port();
}

std::string news_of(const Presence& presence) {
  try {
    presence.check();
  } catch (const PeerError& error) {
    return error.what();
  }
  return "";
}

/// Processes, each of a rank, as far as the others can tell.
class Ranks {
 public:
  explicit Ranks(int size) {
    place_.world_size = size;
    place_.port = free_port();
    for (place_.rank = 0; place_.rank < size; ++place_.rank) here_.push_back(std::make_unique<Presence>(place_));
  }

  Presence& operator[](std::size_t rank) { return *here_[rank]; }
  void end(std::size_t rank) { here_[rank].reset(); }

  /// Ends the rank again and again, each time after it was there for longer, until `by` has missed it.
  void end_until_missed(std::size_t rank, std::size_t by) {
    place_.rank = static_cast<int>(rank);
    for (milliseconds there{1}; news_of(*here_[by]).find(std::to_string(rank)) == std::string::npos; there *= 2) {
      here_[rank] = std::make_unique<Presence>(place_);
      std::this_thread::sleep_for(there);
      end(rank);
    }
  }

  /// What the meeting of those of `ranks` ends with.
  std::vector<std::string> meeting_of(const std::vector<std::size_t>& ranks, const Problem& of_first = {}) {
    std::vector<std::future<std::string>> ends;
    for (const std::size_t rank : ranks)
      ends.push_back(std::async(std::launch::async, [&, rank] {
        const auto check = [&] { here_[rank]->check(); };
        try {
          if (rank == ranks[0] && !of_first.text.empty()) refuse_to_meet(here_[rank]->place(), of_first, kNever, check);
          const Group world = join_gloo(here_[rank]->place(), kNever, check);
          here_[rank]->met();
          return concat(world.all_reduce_scalars({1})[0]);
        } catch (const std::exception& error) {
          return std::string(error.what());
        }
      }));
    std::vector<std::string> said;
    for (auto& one : ends) said.push_back(one.get());
    return said;
  }

 private:
  LaunchedRank place_;
  std::vector<std::unique_ptr<Presence>> here_;
};

constexpr const char* kOneIsGone = "the process of rank 1 has ended before the ranks met";

TEST(Presence, OfAllLetsThemMeet) {
  Ranks ranks(3);
  EXPECT_THAT(ranks.meeting_of({0, 1, 2}), Each(std::string("3")));
  for (const std::size_t rank : {1, 2}) ranks.end(rank);
  EXPECT_EQ(news_of(ranks[0]), "") << "who has met may end";
}

TEST(Presence, OfARankThatEndsIsMissedByAllThatWait) {
  Ranks ranks(3);
  ranks.end_until_missed(1, 2);
  EXPECT_THAT(ranks.meeting_of({0, 2}), Each(HasSubstr(kOneIsGone)));
}

TEST(Presence, OfARankThatHasMetIsNotMissed) {
  Ranks ranks(4);
  ranks.end_until_missed(3, 1);  // rank 1 is there
  ranks[1].met();
  ranks.end(1);
  ranks.end_until_missed(2, 0);
  EXPECT_THAT(news_of(ranks[0]), HasSubstr("the processes of ranks 3, 2 have ended"));
}

TEST(Presence, OfRankZeroIsMissedToo) {
  Ranks ranks(2);
  ranks.end_until_missed(0, 1);
  EXPECT_THAT(news_of(ranks[1]), HasSubstr("the process of rank 0 has ended"));
}

TEST(Presence, MissedLeavesTheReasonOfARankThatRefuses) {
  Ranks ranks(3);
  ranks.end_until_missed(1, 2);
  const std::vector<std::string> said = ranks.meeting_of({0}, {.text = "no such file"});
  EXPECT_THAT(said, Each(AnyOf(std::string("rank 0: no such file"), HasSubstr(kOneIsGone))));
}

TEST(Presence, WithoutAnAddressThrowsNothing) {
  LaunchedRank place;
  place.world_size = 2;
  place.address = "192.0.2.1";  // of documentation: no interface has it
  place.secret = "a secret of this test alone";
  const Presence presence(place);
  EXPECT_FALSE(presence.place().store_is_open);
  EXPECT_NO_THROW(presence.check());
}

}  // namespace
}  // namespace megatron::comm
