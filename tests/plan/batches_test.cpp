#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/plan/steps/batch_plan.h"
#include "megatron/plan/steps/batch_schedule.h"
#include "tests/plan/golden.h"

namespace megatron::plan {
namespace {

TEST(BatchPlan, IsTheSameSetOfSamplesInEveryLayout) {
  constexpr std::int64_t kConsumed = 1000, kGlobalBatch = 144;
  for (const std::int64_t micro_batch : {1, 2, 3, 4})
    for (const int dp : {1, 2, 3, 4}) {
      std::vector<std::int64_t> samples;
      for (int rank = 0; rank < dp; ++rank) {
        const auto plan = batch_plan(kConsumed, kGlobalBatch, micro_batch, dp, rank);
        EXPECT_EQ(plan.microbatches.size(), static_cast<std::size_t>(kGlobalBatch / (micro_batch * dp)));
        for (const auto& microbatch : plan.microbatches) {
          EXPECT_EQ(microbatch.size(), static_cast<std::size_t>(micro_batch));
          samples.insert(samples.end(), microbatch.begin(), microbatch.end());
        }
      }
      std::sort(samples.begin(), samples.end());
      ASSERT_EQ(samples.size(), static_cast<std::size_t>(kGlobalBatch));
      for (std::size_t i = 0; i < samples.size(); ++i)
        EXPECT_EQ(samples[i], kConsumed + static_cast<std::int64_t>(i)) << micro_batch << " " << dp;
    }
}

TEST(BatchPlan, InterleavesRanksWithinAMicrobatch) {
  EXPECT_EQ(batch_plan(100, 8, 2, 2, 0).microbatches, (std::vector<std::vector<std::int64_t>>{{100, 101}, {104, 105}}));
  EXPECT_EQ(batch_plan(100, 8, 2, 2, 1).microbatches, (std::vector<std::vector<std::int64_t>>{{102, 103}, {106, 107}}));
}

TEST(BatchPlan, RefusesABatchThatDoesNotDivide) {
  EXPECT_THROW(batch_plan(0, 10, 4, 1, 0), ConfigError);
  EXPECT_THROW(batch_plan(0, 0, 4, 1, 0), ConfigError);
  EXPECT_THROW(batch_plan(0, 8, 0, 1, 0), ConfigError);
}

TEST(BatchSchedule, GrowsAsMegatronCoresDoes) {
  int compared = 0;
  for (const auto& example : golden("batches.json")) {
    if (example["decrease"]) continue;  // runs fewer samples than the batch where it does not divide: refused here
    const std::int64_t unit =
        example["micro_batch_size"].get<std::int64_t>() * example["data_parallel_size"].get<std::int64_t>();
    std::vector<std::int64_t> rampup;
    if (!example["rampup"].is_null()) rampup = example["rampup"].get<std::vector<std::int64_t>>();
    const BatchSchedule schedule(example["global_batch_size"], unit, rampup);
    for (const auto& row : example["trace"]) {
      EXPECT_EQ(schedule.global_batch(row[0]), row[2]) << example["rampup"] << " at " << row[0];
      EXPECT_EQ(schedule.global_batch(row[0]) / unit, row[1]);
      ++compared;
    }
  }
  EXPECT_GE(compared, 20);
}

TEST(BatchSchedule, CountsTheSamplesOfAWholeRun) {
  std::vector<std::vector<std::int64_t>> rampups = {{}, {8, 8, 1000}, {64, 8, 5}};
  for (std::int64_t length = 1; length < 160; ++length)  // ends at every place of a batch
    for (const auto& [start, increment] : {std::pair{8, 8}, {16, 24}}) rampups.push_back({start, increment, length});
  for (const auto& rampup : rampups) {
    const BatchSchedule schedule(64, 8, rampup);
    std::int64_t samples = 0;
    for (std::int64_t step = 0; step < 200; ++step) {
      ASSERT_EQ(schedule.samples_of(step), samples) << ::testing::PrintToString(rampup);
      samples += schedule.global_batch(samples);
    }
  }
}

TEST(BatchSchedule, CountsGrowthOfAnyLengthAtOnce) {
  constexpr std::int64_t kLong = std::int64_t{1} << 50;
  const BatchSchedule schedule(2, 1, {1, 1, kLong});
  EXPECT_EQ(schedule.samples_of(kLong), kLong) << "steps of one sample up to there";
  EXPECT_EQ(schedule.samples_of(kLong + 5), kLong + 10);
}

// Megatron-LM's rule, sample by sample: the entry with the largest threshold that is reached.
TEST(BatchSchedule, FollowsGivenSizesAndCountsTheirSamples) {
  const auto steps = read_batch_steps(" 0.5K:24,0:8  1K:16 0.002M:32", 10);
  EXPECT_EQ(steps, (std::vector<BatchStep>{{0, 8}, {50, 24}, {100, 16}, {200, 32}}));
  const BatchSchedule schedule(steps, 8, 0);
  std::int64_t samples = 0;
  for (std::int64_t step = 0; step < 60; ++step) {
    ASSERT_EQ(schedule.samples_of(step), samples);
    const std::int64_t want = samples >= 200 ? 32 : samples >= 100 ? 16 : samples >= 50 ? 24 : 8;
    ASSERT_EQ(schedule.global_batch(samples), want) << samples;
    samples += want;
  }
  ASSERT_EQ(schedule.num_sizes(), 4);
  for (std::int64_t k = 0; k < 4; ++k) EXPECT_EQ(schedule.size(k), 8 * (k + 1)) << "each once, ascending";
  EXPECT_EQ(schedule.samples_of(std::int64_t{1} << 62), std::numeric_limits<std::int64_t>::max());
  const BatchSchedule hops(read_batch_steps("0:64 10:8 20:8 30:16", 1), 8, 0);  // the first step is beyond them all
  EXPECT_EQ(hops.samples_of(3), 64 + 16 + 16);
  EXPECT_EQ(read_batch_steps("0:768 250B:1536 500B:3072 750B:6144", 4096)[3], (BatchStep{183105468, 6144}));
}

TEST(BatchSchedule, RefusesSizesThatCannotBe) {
  for (const char* text : {"", " , ", "8", "0:", ":8", "0:0", "0:8 9", "10:8", "0:8 0:16", "0:8 5:16", "0:-8", "0:8x",
                           "0:8 1e9:16", "0:8 nan:16", "0:8 99999999T:16", "0:9999999999", "0:8 KK:16"})
    EXPECT_THROW(read_batch_steps(text, 10), ConfigError) << text;
  const auto steps = read_batch_steps("0:4 100:8 200:16", 1);
  EXPECT_THROW(BatchSchedule(steps, 8, 0), ConfigError) << "4 is no multiple of 8";
  EXPECT_THROW(BatchSchedule(steps, 8, 99), ConfigError);
  EXPECT_EQ(BatchSchedule(steps, 8, 100).num_sizes(), 2) << "4 is over";
  EXPECT_EQ(BatchSchedule(steps, 16, 200).num_sizes(), 1);
}

TEST(BatchSchedule, RefusesARampThatMissesTheFullBatchOrAMicrobatch) {
  EXPECT_THROW(BatchSchedule(64, 8, {8, 24, 100}), ConfigError);  // 8, 32, 56, …
  EXPECT_THROW(BatchSchedule(64, 8, {12, 4, 100}), ConfigError);  // not whole microbatches
  EXPECT_THROW(BatchSchedule(64, 8, {72, 8, 100}), ConfigError);  // starts above
  EXPECT_THROW(BatchSchedule(64, 8, {8, 8}), ConfigError);
  EXPECT_THROW(BatchSchedule(64, 8, {8, 8, 0}), ConfigError);
  EXPECT_THROW(BatchSchedule(60, 8, {}), ConfigError);
}

}  // namespace
}  // namespace megatron::plan
