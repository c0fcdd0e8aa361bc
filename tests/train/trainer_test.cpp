#include "megatron/train/trainer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/comm/local_backend.h"
#include "megatron/config/options.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/kernels/runtime.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    data::IndexedDatasetWriter writer((folder_ / "text").string(), data::DType::U16);
    for (std::uint64_t document = 0; document < 60; ++document) {
      std::vector<std::int32_t> tokens;
      for (std::uint64_t i = 0; i < 30; ++i)
        tokens.push_back(static_cast<std::int32_t>(random_word(1, document, i) % 60));
      const std::vector<std::int32_t> lengths = {30};
      writer.add_document(tokens, lengths);
    }
    writer.publish();
  }
  void TearDown() override { fs::remove_all(folder_); }

  config::RunConfig config(const std::string& name, int tp = 1, int dp = 1) const {
    auto config = testing::tiny_config(tp, dp);
    config.data.data_path = {(folder_ / "text").string()};
    config.data.split = "80,20,0";
    config.train.out = (folder_ / name).string();
    config.log.progress = "off";
    return config;
  }

  // Trains; every rank is asked to stop once `stop_after` steps have begun on the first.
  static Outcome run(const config::RunConfig& config, int stop_after = 1 << 30) {
    const plan::ResolvedRun resolved = plan::resolve(config);
    std::atomic<int> asked = 0;
    std::atomic<Outcome> outcome{};
    comm::run_ranks(resolved.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      outcome = train(resolved, /*eod=*/0, world, at::kCPU,
                      [&] { return world.rank() == 0 && asked.fetch_add(1) + 1 >= stop_after; });
    });
    return outcome;
  }

  std::vector<json> metrics(const std::string& name) const {
    std::ifstream in(folder_ / name / "metrics.jsonl");
    std::vector<json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) /
                           (std::string("trainer_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(TrainerTest, WritesTheFilesOfARun) {
  auto options = config("run", 2, 2);
  options.train.eval_interval = 3;
  options.train.eval_iters = 2;
  options.checkpoint.save_interval = 2;
  ASSERT_EQ(run(options), Outcome::Done);
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 6u + 2u);
  EXPECT_EQ(lines[0]["iteration"], 1);
  EXPECT_EQ(lines[0]["consumed_samples"], 4);
  EXPECT_NEAR(lines[0]["loss"].get<double>(), std::log(61), 0.2);
  const auto rate = plan::resolve(options).learning_rate;
  EXPECT_EQ(lines[0]["learning_rate"].get<double>(), rate.at(0));
  EXPECT_EQ(lines[2]["learning_rate"].get<double>(), rate.at(8)) << "what the third iteration used";
  EXPECT_EQ(lines[3]["iteration"], 3);
  EXPECT_NEAR(lines[3]["valid_ppl"].get<double>(), std::exp(lines[3]["valid_loss"].get<double>()), 1e-9);
  EXPECT_EQ(lines[7]["iteration"], 6);
  EXPECT_TRUE(lines[7].contains("valid_loss"));
  EXPECT_TRUE(checkpoint::has_checkpoint(folder_ / "run" / "checkpoints"));
  config::RunConfig saved;
  config::load_toml(saved, (folder_ / "run" / "recipe.toml").string());
  EXPECT_EQ(saved.model.ffn_hidden_size, 96) << "the recipe is saved as it was resolved";
  EXPECT_EQ(config::save_toml(plan::resolve(saved).config), config::save_toml(saved)) << "and runs again as it is";
}

TEST_F(TrainerTest, AnInterruptedRunGoesOnAsIfItHadNotStopped) {
  auto options = config("straight", 2, 1);
  options.schedule.rampup_batch_size = {2, 1, 9};
  options.schedule.lr_warmup_samples = 5;
  options.train.eval_interval = 2;
  options.train.eval_iters = 1;
  ASSERT_EQ(run(options), Outcome::Done);
  options.train.out = (folder_ / "stopped").string();
  ASSERT_EQ(run(options, 3), Outcome::Interrupted);
  EXPECT_LT(metrics("stopped").size(), metrics("straight").size());
  ASSERT_EQ(run(options), Outcome::Done);
  const auto straight = metrics("straight"), stopped = metrics("stopped");
  const auto timeless = [](const std::vector<json>& lines) {
    std::vector<json> kept;
    for (json line : lines) {
      if (!line.contains("loss")) continue;  // where the stop came during a validation, that one is not done again
      for (const char* field : {"tokens_per_s", "step_ms", "peak_memory_bytes"}) line.erase(field);
      kept.push_back(line);
    }
    return kept;
  };
  EXPECT_EQ(timeless(stopped), timeless(straight)) << "not bit for bit";
}

TEST_F(TrainerTest, SkippedIterationsConsumeSamplesButDoNotAdvanceTheSchedule) {
  auto options = config("run");
  options.schedule.lr = 1e300;  // the first update throws the weights out of every range
  ASSERT_EQ(run(options), Outcome::Done);
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_FALSE(lines[0].contains("skipped"));
  for (std::size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["skipped"], true);
    EXPECT_TRUE(lines[i]["loss"].is_null() || lines[i]["grad_norm"].is_null()) << lines[i];
    EXPECT_EQ(lines[i]["consumed_samples"], 4 * (i + 1));
    EXPECT_EQ(lines[i]["learning_rate"], lines[1]["learning_rate"]);
  }
  options.train.out = (folder_ / "strict").string();
  options.train.exit_on_nan = true;
  EXPECT_THROW(run(options), std::runtime_error);
}

TEST_F(TrainerTest, TheSecondRunOfAFinishedRecipeDoesNothing) {
  ASSERT_EQ(run(config("run")), Outcome::Done);
  const auto lines = metrics("run").size();
  ASSERT_EQ(run(config("run")), Outcome::Done);
  EXPECT_EQ(metrics("run").size(), lines);
}

TEST_F(TrainerTest, StartsFromTheCheckpointOfAnotherRunInAnotherLayout) {
  auto options = config("long");
  ASSERT_EQ(run(options), Outcome::Done);
  options.train.out = (folder_ / "half").string();
  ASSERT_EQ(run(options, 3), Outcome::Interrupted);
  options = config("rest", 3, 2);
  options.train.micro_batch_size = 2;
  options.checkpoint.load = (folder_ / "half").string();
  ASSERT_EQ(run(options), Outcome::Done);
  const auto whole = metrics("long"), rest = metrics("rest");
  ASSERT_EQ(rest.size(), 3u);
  for (std::size_t i = 0; i < rest.size(); ++i)
    EXPECT_NEAR(rest[i]["loss"].get<double>(), whole[i + 3]["loss"].get<double>(), 1e-11);
}

TEST_F(TrainerTest, NamesTheCheckpointThatIsNotThere) {
  auto options = config("run");
  options.checkpoint.load = (folder_ / "nowhere").string();
  try {
    run(options);
    FAIL() << "trained";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("nowhere"), std::string::npos) << e.what();
  }
  EXPECT_FALSE(fs::exists(folder_ / "run")) << "a wrong configuration has written files";
}

}  // namespace
}  // namespace megatron::train
