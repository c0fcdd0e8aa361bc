#include "megatron/base/machine/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "tests/testing/large_stacks.h"

namespace megatron {
namespace {

TEST(ForEachOnThreads, DoesEachIndexOnceAndNamesAWorkerBelowTheThreads) {
  for (const int threads : {-1, 1, 2, 7, 50}) {
    std::vector<std::atomic<int>> done(40);
    std::atomic<std::size_t> highest = 0;
    for_each_on_threads(done.size(), threads, [&](std::size_t index, std::size_t worker) {
      ++done[index];
      if (worker > highest) highest = worker;
    });
    for (const auto& times : done) EXPECT_EQ(times, 1);
    EXPECT_LT(highest, static_cast<std::size_t>(std::max(threads, 1)));
  }
  for_each_on_threads(0, 3, [](std::size_t, std::size_t) { FAIL(); });
}

TEST(ForEachOnThreads, ThrowsWhatTheSmallestIndexThrewAndBeginsNoMore) {
  for (const int threads : {1, 2, 5}) {
    std::atomic<int> begun = 0;
    try {
      for_each_on_threads(100000, threads, [&](std::size_t index, std::size_t) {
        ++begun;
        if (index >= 20) throw std::runtime_error(std::to_string(index));
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "20");
    }
    EXPECT_LE(begun, 20 + threads);
  }
}

TEST(RequireThreads, ThrowsWhereTheSystemRefusesOne) {
  require_threads(8);
  const LargeStacks stacks;
  EXPECT_THROW(require_threads(8), std::system_error);
}

}  // namespace
}  // namespace megatron
