#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "megatron/train/inputs.h"
#include "tests/train/trainer_fixture.h"

// What changes from step to step.
namespace megatron::train {
namespace {

using nlohmann::json;

// The cyclic order is longer than a pass.
TEST_F(TrainerTest, AGrowingDecayAndACyclicOrderFollowNeitherLayoutNorStops) {
  const auto options = [&](const char* name, int tp = 1, int dp = 1) {
    config::RunConfig run = config(name, tp, dp);
    run.schedule.weight_decay_incr_style = "linear";
    run.schedule.start_weight_decay = 1;
    run.schedule.end_weight_decay = 4;
    run.data.dataloader_type = "cyclic";
    run.data.cyclic_batch = 10;
    return run;
  };
  const auto losses = [&](const char* name) {
    std::vector<double> found;
    for (const json& line : metrics(name)) found.push_back(line["loss"]);
    return found;
  };
  ASSERT_EQ(run(options("whole")), Outcome::Done);
  const std::vector<double> whole = losses("whole");
  ASSERT_EQ(whole.size(), 6u);
  EXPECT_EQ(metrics("whole")[2]["weight_decay"], 2);
  ASSERT_EQ(run(options("stopped"), 4), Outcome::Interrupted);
  ASSERT_EQ(run(options("stopped")), Outcome::Done);
  EXPECT_EQ(losses("stopped"), whole);
  for (const auto& [tp, dp] : {std::pair{1, 2}, {2, 1}, {1, 4}}) {
    const std::string name = "tp" + std::to_string(tp) + "dp" + std::to_string(dp);
    ASSERT_EQ(run(options(name.c_str(), tp, dp)), Outcome::Done);
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(losses(name.c_str())[i], whole[i], 1e-11) << name;
  }
  auto constant = options("constant");
  constant.schedule = config("constant").schedule;
  ASSERT_EQ(run(constant), Outcome::Done);
  EXPECT_EQ(losses("constant")[0], whole[0]);
  EXPECT_NE(losses("constant")[1], whole[1]);
  auto single = options("single");
  single.data = config("single").data;
  ASSERT_EQ(run(single), Outcome::Done);
  EXPECT_NE(losses("single")[0], whole[0]);
}

TEST_F(TrainerTest, CyclicPassesOfAnotherSizeAreSaid) {
  const auto said = [&](const char* name, const auto& change, int iterations = 12) {
    config::RunConfig options = config(name);
    options.data.dataloader_type = "cyclic";
    change(options);
    EXPECT_EQ(run(options, 4), Outcome::Interrupted);
    options.train.train_iters = iterations;
    const auto lines = check_checkpoint(folder_ / name, plan::resolve(options));
    return std::ranges::any_of(
        lines, [](const std::string& line) { return line.find("a pass over a blend") != std::string::npos; });
  };
  const auto blend = [](config::RunConfig& options) {
    const std::string text = options.data.data_path.front();
    options.data.data_path = {"1", text, "2", text};
  };
  EXPECT_TRUE(said("blend", blend));
  EXPECT_FALSE(said("same", blend, 6));
  EXPECT_FALSE(said("text", [](auto&) {})) << "passes are over the data";
  EXPECT_TRUE(said("mock", [](config::RunConfig& options) {
    options.data.data_path = {};
    options.data.mock_data = true;
  }));
  EXPECT_FALSE(said("index", [&](config::RunConfig& options) {
    blend(options);
    options.data.index_samples = 48;
  })) << "both are made for as many";
}

TEST_F(TrainerTest, ValidationsBeginAtAnIteration) {
  const auto validations = [&](const char* name, std::int64_t start) {
    config::RunConfig options = config(name);
    options.train.eval_interval = 2;
    options.train.eval_iters = 1;
    options.train.start_eval_at_iter = start;
    options.optimizer.name = "sgd";  // at a rate of 0 validations differ by their samples alone
    options.schedule.lr = 0;
    EXPECT_EQ(run(options), Outcome::Done);
    std::vector<std::pair<int, double>> found;
    for (const json& line : metrics(name))
      if (line.contains("valid_loss")) found.emplace_back(line["iteration"], line["valid_loss"]);
    return found;
  };
  const auto all = validations("all", 0);
  ASSERT_EQ(all.size(), 3u);
  for (const std::int64_t start : {3, 4}) {
    const auto late = validations(start == 3 ? "three" : "four", start);
    ASSERT_EQ(late.size(), 2u) << start;
    EXPECT_EQ(late[0], (std::pair{4, all[0].second})) << "from the first samples on";
    EXPECT_EQ(late[1], (std::pair{6, all[1].second}));
  }
  EXPECT_EQ(validations("end", 100), (std::vector{std::pair{6, all[0].second}})) << "that of the end";
}

}  // namespace
}  // namespace megatron::train
