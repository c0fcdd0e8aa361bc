#include "megatron/comm/first_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/threads/local_backend.h"

namespace megatron::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

/// Work of the first rank alone.
void run_on_first_rank(const Group& group, const std::function<void()>& work,
                       milliseconds beat = std::chrono::seconds(1)) {
  const bool works = group.rank() == 0;
  run_on_every_rank(
      group,
      [&] {
        if (works) work();
      },
      beat);
}

TEST(RunOnFirstRank, OthersWaitLongerThanTheTimeoutOfACollective) {
  for (const auto run : {&run_gloo_ranks, static_cast<decltype(&run_gloo_ranks)>(&run_ranks)}) {
    std::atomic<int> done = 0;
    run(3,
        [&](const Group& world) {
          run_on_first_rank(
              world,
              [&] {
                std::this_thread::sleep_for(milliseconds(1500));  // the work: three timeouts long
                ++done;
              },
              milliseconds(20));
          EXPECT_EQ(done, 1) << "rank " << world.rank();
        },
        {.timeout = milliseconds(500)});
    EXPECT_EQ(done, 1) << "one rank did it, once";
  }
}

TEST(RunOnFirstRank, WhatTheWorkThrowsEndsEveryRank) {
  std::mutex mutex;
  std::vector<std::string> said;
  EXPECT_THAT(
      [&] {
        run_ranks(3, [&](const Group& world) {
          try {
            run_on_first_rank(world, [] { throw std::domain_error("no room"); });
          } catch (const PeerError& e) {
            const std::lock_guard lock(mutex);
            said.emplace_back(e.what());
          }
        });
      },
      testing::ThrowsMessage<std::domain_error>("no room"));
  EXPECT_THAT(said, testing::ElementsAre(AllOf(HasSubstr("rank 0"), HasSubstr("no room")), HasSubstr("no room")));
}

TEST(RunOnFirstRank, AloneItJustWorks) {
  bool done = false;
  run_on_first_rank(Group(), [&] { done = true; });
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace megatron::comm
