#include "megatron/train/data/prefetch.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>

namespace megatron::train {
namespace {

/// Microbatches of one sample each, numbered from 0 to `end`.
Prefetcher::NextIds up_to(std::int64_t end) {
  return [end, i = std::int64_t{0}]() mutable -> std::vector<std::int64_t> {
    if (i == end) return {};
    return {i++};
  };
}

model::Batch batch_of(const std::vector<std::int64_t>& ids) {
  model::Batch batch;
  batch.tokens_bs = at::full({1, 1}, ids.at(0), at::kLong);
  return batch;
}

std::int64_t number_of(const model::Batch& batch) { return batch.tokens_bs.item<std::int64_t>(); }

/// Whether a thread of this process waits.
bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const std::size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.size() > name_end + 2 && stat[name_end + 2] == 'S';
}

TEST(Prefetcher, GivesTheMicrobatchesInTheirOrderHoweverManyWait) {
  for (const std::size_t ahead : {0u, 1u, 3u, 100u}) {
    Prefetcher reader(up_to(20), batch_of, ahead);
    for (std::int64_t i = 0; i < 20; ++i) EXPECT_EQ(number_of(reader.next()), i);
    EXPECT_THROW(reader.next(), std::logic_error);
  }
}

TEST(Prefetcher, MakesNoMoreThanItMayKeepAndOneThatWaitsForRoom) {
  std::atomic<int> made = 0;
  std::counting_semaphore<100> making(0);
  Prefetcher reader(
      up_to(50),
      [&](const auto& ids) {
        ++made;
        making.release();
        return batch_of(ids);
      },
      3);
  for (int i = 0; i < 4; ++i) making.acquire();
  EXPECT_EQ(number_of(reader.next()), 0);
  making.acquire();
  EXPECT_LE(made, 5);
}

TEST(Prefetcher, CarriesAnErrorToTheStepThatMeetsIt) {
  for (const std::size_t ahead : {0u, 8u}) {
    Prefetcher reader(
        up_to(10),
        [](const auto& ids) {
          if (ids[0] == 3) throw std::runtime_error("a damaged file");
          return batch_of(ids);
        },
        ahead);
    for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(number_of(reader.next()), i);
    EXPECT_THROW(reader.next(), std::runtime_error);
  }
}

TEST(Prefetcher, CountsTheTimeInWhichAStepWaitedAndNoneWhereAllWasReady) {
  std::counting_semaphore<10> may_make(0), made(0);
  Prefetcher reader(
      up_to(10),
      [&](const auto& ids) {
        may_make.acquire();
        made.release();
        return batch_of(ids);
      },
      4);
  may_make.release(3);
  for (int i = 0; i < 3; ++i) made.acquire();
  may_make.release(1);
  made.acquire();  // the fourth is under way: the three before it lie there
  for (int i = 0; i < 3; ++i) reader.next();
  EXPECT_EQ(reader.take_waited_s(), 0);
  // What is asked for next is made when this thread sleeps: for want of it.
  std::atomic<bool> asks = false;
  const pid_t self = ::gettid();
  std::thread later([&] {
    while (!asks || !sleeps(self)) std::this_thread::yield();
    may_make.release(6);
  });
  EXPECT_EQ(number_of(reader.next()), 3);
  asks = true;
  for (int i = 4; i < 10; ++i) EXPECT_EQ(number_of(reader.next()), i);
  later.join();
  EXPECT_GT(reader.take_waited_s(), 0);
  EXPECT_EQ(reader.take_waited_s(), 0) << "counted once";
}

TEST(Prefetcher, EndsWithMicrobatchesLeft) {
  Prefetcher reader(up_to(1 << 30), batch_of, 2);
  EXPECT_EQ(number_of(reader.next()), 0);
}

TEST(StepBatches, GivesAStepsMicrobatchesInAnyOrderAndLeavesTheNextStepsFirst) {
  Prefetcher reader(up_to(20), batch_of, 3);
  StepBatches first(reader, 4, at::kCPU);
  for (const std::size_t m : {2u, 0u, 2u}) EXPECT_EQ(number_of(first(m)), static_cast<std::int64_t>(m));
  first.finish();
  StepBatches second(reader, 4, at::kCPU);
  EXPECT_EQ(number_of(second(0)), 4);
}

}  // namespace
}  // namespace megatron::train
