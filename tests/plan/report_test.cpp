#include "megatron/plan/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "megatron/base/progress.h"
#include "tests/plan/golden.h"

namespace megatron::plan {
namespace {

using nlohmann::json;

/// 8 ranks, tp 2 x dp 4; two buckets or more; a batch of two microbatches on each rank.
ResolvedRun small_run() {
  config::RunConfig config;
  config.model.num_layers = 3;
  config.model.hidden_size = 64;
  config.model.vocab_size = 500;
  config.parallel.world_size = 8;
  config.parallel.tp = 2;
  config.optimizer.bucket_size = 50'000;
  config.train.micro_batch_size = 3;
  config.train.global_batch_size = 24;
  return resolve(config);
}

TEST(Report, ReadsAsTheGoldenText) {
  std::ifstream file(std::string(MEGATRON_TEST_FOLDER) + "/golden/plan/report.txt");
  const std::string expected{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(report_text(small_run()), expected);
}

TEST(Report, CutsEveryParameterIntoSlicesThatCoverIt) {
  const ResolvedRun run = small_run();
  const json all = report(run);
  std::int64_t elements = 0;
  for (const json& parameter : all["parameter_slices"]) {
    std::int64_t size = 1;
    for (const std::int64_t extent : parameter["shape"]) size *= extent;
    elements += size;
    if (parameter["split_dim"].is_null()) continue;
    std::int64_t covered = 0;
    for (const json& slice : parameter["slices"]) {
      ASSERT_EQ(slice.size(), 1u) << parameter;
      EXPECT_EQ(slice[0][0], covered) << parameter;
      covered = slice[0][1];
    }
    EXPECT_EQ(covered, parameter["shape"][parameter["split_dim"].get<std::size_t>()]) << parameter;
    EXPECT_EQ(parameter["slices"].size(), 2u) << parameter;
  }
  EXPECT_EQ(elements, all["parameters"]);
}

TEST(Report, ListsTheShardsOfTheDistributedOptimizerWhichCoverEveryGradientOnce) {
  config::RunConfig config = small_run().config;
  config.optimizer.use_distributed_optimizer = true;
  config.parallel.world_size = 6;  // dp 3: bucket sizes are multiples of 384
  config.train.global_batch_size = 27;
  const ResolvedRun run = resolve(config);
  const json buffer = report(run)["gradient_buffers"][0];
  ASSERT_EQ(buffer["shards"].size(), 3u);
  std::map<std::string, std::int64_t> elements;
  for (const json& of_rank : buffer["shards"]) {
    ASSERT_EQ(of_rank.size(), buffer["buckets"].size());
    for (std::size_t b = 0; b < of_rank.size(); ++b) {
      const auto size = [](const json& range) { return range[1].get<std::int64_t>() - range[0].get<std::int64_t>(); };
      EXPECT_EQ(3 * size(of_rank[b]["world"]),
                buffer["buckets"][b]["end"].get<std::int64_t>() - buffer["buckets"][b]["begin"].get<std::int64_t>());
      for (const json& part : of_rank[b]["parameters"]) elements[part["name"]] += size(part["param"]);
    }
  }
  for (const json& slot : buffer["slots"])
    EXPECT_EQ(elements[slot["name"]], slot["end"].get<std::int64_t>() - slot["begin"].get<std::int64_t>());
  EXPECT_THAT(report_text(run), ::testing::HasSubstr("shards: what a dp rank updates of bucket 0\n"));
  EXPECT_FALSE(report(small_run())["gradient_buffers"][0].contains("shards"));
}

TEST(Report, SaysWhereBucketsTakeTurns) {
  config::RunConfig config = small_run().config;
  config.model.num_layers = 8;
  config.optimizer.bucket_size = 10'000;
  config.optimizer.use_distributed_optimizer = true;
  const json whole = report(resolve(config));
  config.optimizer.data_parallel_sharding_strategy = "optim_grads";
  const ResolvedRun run = resolve(config);
  const json pooled = report(run);
  const json &buffer = pooled["gradient_buffers"][0], &pool = buffer["pool"];
  ASSERT_EQ(pool["begin"].size(), buffer["buckets"].size());
  const std::int64_t size = pool["size"], all = buffer["size"];
  EXPECT_LT(size, all / 2);
  EXPECT_EQ(pooled["memory_bytes"]["gradients"][0], 4 * (size + all / 4)) << "dp 4";
  EXPECT_EQ(pooled["memory_bytes"]["optimizer_state"], whole["memory_bytes"]["optimizer_state"]);
  EXPECT_FALSE(whole["gradient_buffers"][0].contains("pool"));
  EXPECT_THAT(report_text(run), ::testing::HasSubstr("in which buckets take turns"));
  EXPECT_THAT(report_text(run),
              ::testing::HasSubstr("of sums; stage 1 would hold " + human_bytes(4 * static_cast<double>(all))));
  EXPECT_THAT(report_text(small_run()), ::testing::Not(::testing::HasSubstr("take turns")));
}

TEST(Report, PlacesEveryGradientInOneBucket) {
  const json all = report(small_run());
  const json& buffer = all["gradient_buffers"][0];
  std::set<std::string> in_buckets, in_slots, parameters;
  std::int64_t at = 0;
  for (const json& bucket : buffer["buckets"]) {
    EXPECT_EQ(bucket["begin"], at);
    at = bucket["end"];
    for (const std::string name : bucket["parameters"]) EXPECT_TRUE(in_buckets.insert(name).second) << name;
  }
  EXPECT_EQ(at, buffer["size"]);
  EXPECT_GE(buffer["buckets"].size(), 2u);
  for (const json& slot : buffer["slots"]) {
    in_slots.insert(slot["name"]);
    const json& bucket = buffer["buckets"][slot["bucket"].get<std::size_t>()];
    EXPECT_GE(slot["begin"], bucket["begin"]);
    EXPECT_LE(slot["end"], bucket["end"]);
  }
  for (const json& parameter : all["parameter_slices"]) parameters.insert(parameter["name"]);
  EXPECT_EQ(in_buckets, parameters);
  EXPECT_EQ(in_slots, parameters);
}

TEST(Report, GivesEverySampleOfTheFirstStepToOneRank) {
  std::set<std::int64_t> seen;
  const json step = report(small_run())["first_step"];
  ASSERT_EQ(step["samples"].size(), 4u);
  for (const json& rank : step["samples"]) {
    EXPECT_EQ(rank.size(), step["microbatches"]);
    for (const json& microbatch : rank)
      for (const std::int64_t sample : microbatch) EXPECT_TRUE(seen.insert(sample).second) << sample;
  }
  EXPECT_EQ(seen.size(), 24u);
  EXPECT_EQ(*seen.rbegin(), 23);
}

TEST(Report, StartsWhereABatchThatGrowsDoes) {
  config::RunConfig config = small_run().config;
  config.schedule.rampup_batch_size = {12, 12, 1000};
  EXPECT_EQ(report(resolve(config))["first_step"]["global_batch_size"], 12);
}

TEST(Report, StaysSmallWhereTheBatchIsHuge) {
  config::RunConfig config = small_run().config;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 1 << 18;
  config.train.train_iters = 1;
  const json step = report(resolve(config))["first_step"];
  EXPECT_EQ(step["microbatches"], 1 << 16);
  EXPECT_LE(step["samples"][0].size(), 1u << 14);
  EXPECT_EQ(step["samples"][3][1], json({7}));
}

TEST(Report, SaysWhatEachPipelineRankWaitsAndHolds) {
  config::RunConfig config;
  config.model.num_layers = 8;
  config.model.vocab_size = 500;
  config.parallel.world_size = config.parallel.pp = 4;
  config.train.global_batch_size = 8;
  const json all = report(resolve(config));
  const json& schedule = all["schedule"];
  EXPECT_EQ(schedule["makespan"], 33);
  EXPECT_EQ(schedule["idle"], (std::vector<double>{9, 9, 9, 9})) << "(p - 1)(F + B)";
  EXPECT_EQ(schedule["peak_bytes"], all["memory_bytes"]["activations"]);
  config.parallel.world_size = config.parallel.pp = 1;
  EXPECT_EQ(report(resolve(config))["schedule"]["name"], "none");
}

}  // namespace
}  // namespace megatron::plan
