#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/samples/gpt_dataset.h"
#include "megatron/kernels/runtime.h"
#include "megatron/train/inputs.h"
#include "megatron/train/trainer.h"
#include "tests/testing/folders.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Runs over several datasets.
class RunDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::uint64_t set = 0; set < 3; ++set) {
      data::IndexedDatasetWriter writer(prefix(set), data::DType::U16);
      for (std::uint64_t document = 0; document < 20; ++document) {
        std::vector<std::int32_t> tokens;
        for (std::uint64_t i = 0; i < 10 + document; ++i)
          tokens.push_back(static_cast<std::int32_t>(random_word(set, document, i) % 60));
        writer.add_document(tokens, std::vector<std::int32_t>{static_cast<std::int32_t>(tokens.size())});
      }
      writer.publish();
    }
  }

  std::string prefix(std::uint64_t set) const {
    return (folder_.path() / std::string(1, static_cast<char>('a' + set))).string();
  }

  config::RunConfig config(const std::string& name, int tp = 1, int dp = 1) const {
    auto config = testing::tiny_config(tp, dp);
    config.train.out = (folder_.path() / name).string();
    config.log.progress = "off";
    config.train.eval_interval = 3;
    config.train.eval_iters = 2;
    config.data.train_data_path = {"0.25", prefix(0), "0.75", prefix(1)};
    config.data.valid_data_path = {prefix(2)};
    return config;
  }

  /// Trains; what the run has measured, without times.
  std::vector<json> run(const config::RunConfig& config) const {
    const plan::ResolvedRun resolved = plan::resolve(config);
    check_inputs(resolved);
    comm::run_ranks(resolved.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      train(resolved, /*eod=*/0, world, at::kCPU, [] { return false; });
    });
    std::ifstream in(fs::path(config.train.out) / "metrics.jsonl");
    std::vector<json> lines;
    for (std::string line; std::getline(in, line);) {
      lines.push_back(json::parse(line));
      for (const char* field :
           {"tokens_per_s", "tflops_per_rank", "step_ms", "data_wait_ms", "memory_bytes", "peak_memory_bytes"})
        lines.back().erase(field);
    }
    return lines;
  }

  static void expect_close(const std::vector<json>& a, const std::vector<json>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i)
      for (const auto& [key, value] : a[i].items()) {
        if (value.is_number_float())
          EXPECT_NEAR(value.get<double>(), b[i][key].get<double>(), 1e-9) << key;
        else
          EXPECT_EQ(value, b[i][key]) << key;
      }
  }

  TemporaryFolder folder_;
};

TEST_F(RunDataTest, AnyReadAheadGivesTheSameRunToTheBit) {
  auto options = config("direct");
  options.data.prefetch = 0;
  const auto direct = run(options);
  for (const std::int64_t ahead : {1, 64}) {
    options.train.out = (folder_.path() / std::to_string(ahead)).string();
    options.data.prefetch = ahead;
    EXPECT_EQ(run(options), direct) << ahead;
  }
}

TEST_F(RunDataTest, ABlendTrainsTheSameInEveryLayout) {
  const auto one = run(config("one"));
  expect_close(one, run(config("dp", 1, 2)));
  expect_close(one, run(config("tp", 2, 2)));
}

TEST_F(RunDataTest, SeveralValidationSetsAreMeasuredApartAsIfEachWereAlone) {
  auto options = config("both");
  options.data.valid_data_path = {prefix(2), prefix(1)};
  options.data.multiple_validation_sets = true;
  std::vector<json> both;
  for (const json& line : run(options))
    if (line.contains("valid_loss")) both.push_back(line);
  ASSERT_EQ(both.size(), 4u);
  for (const std::uint64_t set : {1, 2}) {
    auto alone = config("alone" + std::to_string(set));
    alone.data.valid_data_path = {prefix(set)};
    std::size_t at = set == 2 ? 0 : 1;
    for (const json& line : run(alone)) {
      if (!line.contains("valid_loss")) continue;
      EXPECT_EQ(line["valid_loss"], both[at]["valid_loss"]);
      EXPECT_EQ(both[at]["valid_set"], std::string(1, static_cast<char>('a' + set)));
      at += 2;
    }
  }
}

TEST_F(RunDataTest, AFullValidationCountsEachSampleOnceInEveryLayout) {
  auto options = config("full");
  options.data.full_validation = true;
  const auto full = run(options);
  auto wide = config("wide", 1, 4);
  wide.data.full_validation = true;
  expect_close(full, run(wide));
  // The set has more samples than one global batch and not a multiple of it. Batches of one sample count no row twice.
  auto narrow = config("narrow");
  narrow.data.full_validation = true;
  narrow.train.global_batch_size = 1;
  narrow.schedule.lr = 0;
  auto same = config("same");
  same.data.full_validation = true;
  same.schedule.lr = 0;
  const auto last = [](const std::vector<json>& lines) { return lines.back()["valid_loss"].get<double>(); };
  EXPECT_NEAR(last(run(narrow)), last(run(same)), 1e-9);
}

TEST_F(RunDataTest, TheTestSetIsMeasuredOnceAtTheEnd) {
  auto options = config("run");
  options.data.test_data_path = {prefix(1)};
  const auto lines = run(options);
  EXPECT_EQ(std::ranges::count_if(lines, [](const json& line) { return line.contains("test_loss"); }), 1);
  EXPECT_TRUE(lines.back().contains("test_ppl"));
  EXPECT_EQ(run(options).size(), lines.size()) << "a run that is done does not test again";
}

TEST_F(RunDataTest, PackedDocumentsTrainTheSameInEveryLayout) {
  auto one = config("one");
  one.data.packed = true;
  auto two = config("two", 2, 2);
  two.data.packed = true;
  expect_close(run(one), run(two));
}

TEST_F(RunDataTest, ARunGoesOnWithSmallerBatchesToItsLastIteration) {
  for (const std::int64_t prefetch : {0, 8}) {
    auto options = config("run" + std::to_string(prefetch));
    options.data.prefetch = prefetch;
    options.train.global_batch_size = 16;
    options.train.train_iters = 10;
    run(options);
    options.train.global_batch_size = 8;
    options.train.train_iters = 15;
    const auto lines = run(options);
    EXPECT_EQ(lines.back()["iteration"], 15);
    EXPECT_EQ(lines.back()["consumed_samples"], 10 * 16 + 5 * 8);
  }
}

TEST_F(RunDataTest, GoingOnWithOtherDataIsSaid) {
  const auto before = config("run");
  run(before);
  const auto warnings = [&](const auto& change) {
    auto options = before;
    change(options);
    return check_checkpoint(fs::path(before.train.out) / "checkpoints", plan::resolve(options));
  };
  const std::vector<std::pair<std::string, std::function<void(config::RunConfig&)>>> changes = {
      {"data.data_path", [&](auto& c) { c.data.data_path = {prefix(0)}; }},
      {"data.data_args_path", [](auto& c) { c.data.data_args_path = "words"; }},
      {"data.train_data_path", [](auto& c) { std::swap(c.data.train_data_path[0], c.data.train_data_path[2]); }},
      {"data.valid_data_path", [&](auto& c) { c.data.valid_data_path = {prefix(1)}; }},
      {"data.test_data_path", [&](auto& c) { c.data.test_data_path = {prefix(1)}; }},
      {"data.per_split_data_args_path", [](auto& c) { c.data.per_split_data_args_path = "words"; }},
      {"data.packed", [](auto& c) { c.data.packed = true; }},
      {"data.sft", [](auto& c) { c.data.sft = true; }},
      {"data.fim_data", [](auto& c) { c.data.fim_data = true; }},
      {"train.seed", [](auto& c) { c.train.seed = 5; }}};
  for (const auto& [path, change] : changes) {
    const auto said = warnings(change);
    ASSERT_EQ(said.size(), 2u) << path;
    EXPECT_THAT(said[0], ::testing::HasSubstr("warning: options differ from those of the checkpoint"));
    EXPECT_EQ(said[1].find("  " + path + ": "), 0u) << said[1];
    EXPECT_THAT(said[1], ::testing::HasSubstr("(samples come in another order than before)"));
  }
  EXPECT_TRUE(warnings([](auto&) {}).empty());
  EXPECT_TRUE(warnings([](auto& c) { c.data.split = "1,1,1"; }).empty()) << "not read with data.train_data_path";
  EXPECT_TRUE(warnings([](auto& c) { c.fim.rate = 0.9; }).empty()) << "not used";
  EXPECT_EQ(warnings([](auto& c) { c.data.fim_data = true, c.fim.rate = 0.9; }).size(), 3u);
}

TEST_F(RunDataTest, DataIsKnownByWhatItHolds) {
  const auto before = config("run");
  run(before);
  const auto said = [&](const config::RunConfig& options) {
    return check_checkpoint(fs::path(before.train.out) / "checkpoints", plan::resolve(options));
  };
  EXPECT_TRUE(said(before).empty());
  auto moved = before;
  for (const char* end : {".bin", ".idx"}) fs::copy_file(prefix(1) + end, prefix(3) + end);
  moved.data.train_data_path[3] = prefix(3);
  EXPECT_TRUE(said(moved).empty()) << "the same in another place";
  for (const char* end : {".bin", ".idx"}) {
    fs::remove(prefix(1) + end);
    fs::copy_file(prefix(2) + end, prefix(1) + end);
  }
  ASSERT_EQ(said(before).size(), 1u);
  EXPECT_THAT(said(before)[0], ::testing::StartsWith("warning: the data is not that of the checkpoint"));
  EXPECT_TRUE(said(moved).empty());
}

TEST_F(RunDataTest, TheTokenizerIsReadOnceForAllParts) {
  auto options = config("run");
  const fs::path file = folder_.path() / "tokenizer.json";
  fs::copy_file(fs::path(tests_folder()) / "golden/tokenizers/qwen.json", file);
  options.data.tokenizer = file.string();
  options.data.fim_data = true;
  for (auto* token : {&options.fim.prefix_token, &options.fim.middle_token, &options.fim.suffix_token,
                      &options.fim.pad_token, &options.fim.eod_token})
    *token = "a";
  const plan::ResolvedRun run = plan::resolve(options);
  const SampleTools tools = load_tools(run.config);
  fs::remove(file);
  for (const auto part : {data::SplitPart::Train, data::SplitPart::Valid})
    EXPECT_TRUE(part_specs(run, part, 0, tools).at(0).fill_in_middle);
}

TEST_F(RunDataTest, AValidationNeedsData) {
  auto options = config("run");
  options.data.valid_data_path.clear();
  EXPECT_THROW(run(options), ConfigError);
  EXPECT_FALSE(fs::exists(options.train.out));
}

}  // namespace
}  // namespace megatron::train
