#include "megatron/plan/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/config/options.h"
#include "tests/plan/golden.h"
#include "tests/testing/folders.h"

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
  std::ifstream file(tests_folder() + "/golden/plan/report.txt");
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
  const std::string text = report_text(run);
  EXPECT_THAT(text, ::testing::HasSubstr("shards: what a dp rank updates of bucket 0\n"));
  // A shard within one parameter names it once.
  EXPECT_FALSE(std::regex_search(text, std::regex(R"((\w+\.weight \d+-\d+): \1)"))) << text;
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
              ::testing::HasSubstr(concat("of sums; stage 1 would hold ", 4 * all / 1000, ".", 4 * all % 1000, " kB")));
  EXPECT_THAT(report_text(small_run()), ::testing::Not(::testing::HasSubstr("take turns")));
}

TEST(Report, SaysWhatNodesKeepOfCheckpoints) {
  config::RunConfig config = small_run().config;
  EXPECT_FALSE(report(resolve(config)).contains("checkpoints_in_memory"));
  config.checkpoint.memory_interval = 10;
  const ResolvedRun run = resolve(config);
  const json all = report(run);
  const json& kept = all["checkpoints_in_memory"];
  // Adam keeps two numbers for each weight; rows that pad the vocabulary are not saved.
  const std::int64_t padding = (all["padded_vocab"].get<std::int64_t>() - 500) * 64;
  EXPECT_EQ(kept["checkpoint_bytes"], (all["parameters"].get<std::int64_t>() - padding) * 3 * 4);
  EXPECT_EQ(kept["one_node"], 2);
  EXPECT_EQ(kept["several_nodes"], 4);
  const double share = kept["checkpoint_bytes"].get<double>() / run.grid.world_size();
  EXPECT_THAT(report_text(run), ::testing::HasSubstr(concat("of several nodes 4 x ", human_bytes(share), " = ",
                                                            human_bytes(4 * share), "\n")));
}

/// "12.345 GB", "7 B": whole thousandths of the unit, of bytes whole ones; and that unit.
std::pair<std::int64_t, std::string> amount(const std::string& text) {
  static const std::regex pattern(R"((\d+)(?:\.(\d{3}))? ([kMGT]?B).*)");
  std::smatch parts;
  EXPECT_TRUE(std::regex_match(text, parts, pattern)) << text;
  return {std::stoll(parts[1].str() + parts[2].str()), parts[3]};
}

double bytes_of(const std::pair<std::int64_t, std::string>& amount) {
  static const std::map<std::string, double> units = {{"B", 1}, {"kB", 1}, {"MB", 1e3}, {"GB", 1e6}, {"TB", 1e9}};
  return static_cast<double>(amount.first) * units.at(amount.second);
}

/// The rows that follow a line which begins with `heading`, by name.
std::vector<std::pair<std::string, std::string>> rows_under(const std::string& text, const std::string& heading,
                                                            std::string* line = nullptr) {
  std::istringstream lines(text.substr(text.find(heading)));
  std::string row;
  std::getline(lines, row);
  if (line != nullptr) *line = row;
  std::vector<std::pair<std::string, std::string>> rows;
  while (std::getline(lines, row) && row.starts_with("  ")) {
    const std::string name = row.substr(2, 20);
    rows.emplace_back(name.substr(0, name.find_last_not_of(' ') + 1), row.substr(23));
  }
  return rows;
}

/// Every recipe of configs/ and some layouts and precisions of a small model.
std::vector<std::pair<std::string, config::RunConfig>> many_recipes() {
  std::vector<std::pair<std::string, config::RunConfig>> all;
  for (const auto& entry : std::filesystem::directory_iterator(tests_folder() + "/../configs")) {
    if (!entry.is_regular_file()) continue;
    config::RunConfig config;
    config::load_toml(config, entry.path().string());
    if (config.parallel.world_size <= 128) all.emplace_back(entry.path().filename().string(), config);
  }
  for (const int tp : {1, 2, 4})
    for (const int pp : {1, 3})
      for (const std::int64_t hidden : {8, 64, 520, 4096})
        for (const char* dtype : {"fp32", "bf16"}) {
          config::RunConfig config;
          config.model.num_layers = 6;
          config.model.hidden_size = hidden;
          config.model.num_attention_heads = 4;
          config.model.vocab_size = 777;
          config.parallel.tp = tp;
          config.parallel.pp = pp;
          config.parallel.world_size = 2 * tp * pp;
          config.optimizer.use_distributed_optimizer = hidden == 520;
          config.optimizer.bucket_size = hidden * hidden;
          config.optimizer.overlap_grad_reduce = true;
          config.train.dtype = dtype;
          config.train.global_batch_size = 12;
          all.emplace_back(concat("tp ", tp, ", pp ", pp, ", h ", hidden, ", ", dtype), config);
        }
  return all;
}

TEST(Report, TotalsAreTheSumsOfTheRowsAboveThem) {
  const auto recipes = many_recipes();
  EXPECT_GT(recipes.size(), 60u);
  for (const auto& [name, config] : recipes) {
    SCOPED_TRACE(name);
    const ResolvedRun run = resolve(config);
    const std::string text = report_text(run, "amx");
    std::int64_t sum = 0, total = -1;
    std::string unit;
    for (const auto& [kind, value] : rows_under(text, "memory of rank ")) {
      const auto [figure, of] = amount(value);
      EXPECT_TRUE(unit.empty() || unit == of) << kind;
      unit = of;
      if (kind == "total")
        total = figure;
      else
        sum += figure;
    }
    EXPECT_EQ(total, sum);
    // The plan's own sum of the rank that holds most, to the rounding of at most six rows.
    const json totals = report(run, "amx")["memory_bytes"]["total"];
    const double most = std::max_element(totals.begin(), totals.end())->get<double>();
    EXPECT_NEAR(bytes_of({total, unit}), most, 3.5 * bytes_of({1, unit}));

    std::string heading;
    sum = 0;
    for (const auto& [bucket, value] : rows_under(text, "gradient buffer of a rank", &heading))
      if (bucket.starts_with("bucket ") || bucket == "…") sum += amount(value.substr(value.find(", ") + 2)).first;
    EXPECT_EQ(amount(heading.substr(heading.find("elements, ") + 10)).first, sum);
  }
}

TEST(Report, OfAGpuDoesNotDependOnTheProcessorAndSaysWhichItIsOf) {
  config::RunConfig config;
  config::load_toml(config, tests_folder() + "/../configs/gpt_1.3b.toml");
  config.train.dtype = "bf16";
  config.parallel.device = "cuda";
  EXPECT_EQ(report(resolve(config), "amx")["memory_bytes"], report(resolve(config), "avx2")["memory_bytes"]);
  EXPECT_THAT(report_text(resolve(config), "amx"), ::testing::Not(::testing::HasSubstr("packed_weights")));
  config.parallel.device = "cpu";
  config.train.micro_batch_size = 1;
  config.data.seq_length = 128;  // fewer tokens than are packed while products read them
  EXPECT_EQ(report(resolve(config), "amx")["target"], json({{"device", "cpu"}, {"processor", "amx"}}));
  EXPECT_THAT(report_text(resolve(config), "amx"), ::testing::HasSubstr("on processors with amx (--processor)"));
  EXPECT_THAT(report_text(resolve(config), "avx2"), ::testing::Not(::testing::HasSubstr("packed_weights")));
}

TEST(Report, ComparesWhatALayerKeepsWithThePapersFormula) {
  config::RunConfig config = small_run().config;
  EXPECT_TRUE(report(resolve(config))["layer_activations"].is_null()) << "32-bit elements";
  config.train.dtype = "bf16";
  const auto paper = [&] { return report(resolve(config))["layer_activations"]["paper_bytes"].get<double>(); };
  const double sbh = 128.0 * 3 * 64, scores = 5 * 4 * 128 / 64.0;
  EXPECT_EQ(paper(), sbh * (10 + (24 + scores) / 2));
  config.parallel.sp = true;
  EXPECT_EQ(paper(), sbh * (34 + scores) / 2);
  config.train.recompute = "selective";
  EXPECT_EQ(paper(), sbh * 34 / 2);
  EXPECT_THAT(report_text(resolve(config)), ::testing::HasSubstr("by Korthikanti et al. 2022, table 2"));
  config::RunConfig experts = config;
  experts.train.recompute = "none";
  experts.model.add_bias_linear = false;
  experts.model.num_experts = 8;
  EXPECT_TRUE(report(resolve(experts))["layer_activations"].is_null());
  config.model.gated_linear_unit = true;
  EXPECT_TRUE(report(resolve(config))["layer_activations"].is_null());
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

TEST(Report, SaysHowManyForwardsRecomputeInPart) {
  config::RunConfig config;
  config.model.num_layers = 8;
  config.model.vocab_size = 500;
  config.parallel.world_size = config.parallel.pp = 4;
  config.train.global_batch_size = 8;
  config.train.recompute = "full";
  EXPECT_FALSE(report(resolve(config))["schedule"].contains("partial_forwards"));
  config.train.recompute_partial_microbatches = 1;
  // One of windows of 4, 3, 2, 1 microbatches.
  EXPECT_EQ(report(resolve(config))["schedule"]["partial_forwards"], (std::vector<int>{2, 3, 4, 8}));
  EXPECT_THAT(report_text(resolve(config)),
              ::testing::HasSubstr("at most 4 activations, 2 of 8 forwards recompute in part"));
}

}  // namespace
}  // namespace megatron::plan
