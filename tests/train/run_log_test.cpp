#include "megatron/train/log/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "megatron/base/files/file.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunLog, LeavesStepsWithoutATokenThatCountsOutOfTheMean) {
  TemporaryFolder folder;
  config::RunConfig config = testing::tiny_config();
  config.train.out = folder.path().string();
  config.train.train_iters = 4;
  config.log.interval = 4;
  config.log.progress = "off";
  const plan::ResolvedRun run = plan::resolve(config);
  const std::string console = (folder.path() / "console").string();
  {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(console.c_str(), "w"), std::fclose);
    RunLog log(run, {}, file.get());
    for (const auto& [loss, tokens] : {std::pair(0.0, 0.0), {0.0, 0.0}, {8.0, 4.0}, {2.0, 6.0}}) {
      StepResult result;
      result.loss = loss;
      result.tokens = tokens;
      result.figures = {{"reward", 0.5}};
      RunState state;
      state.iteration = log.last() ? log.last()->iteration + 1 : 1;
      log.iteration(state, {.result = result, .step_s = 1, .global_batch = 4});
    }
  }
  const std::string shown = read_file(console);
  EXPECT_THAT(shown, HasSubstr(" lm loss: 5.000000E+00 |"));
  EXPECT_THAT(shown, HasSubstr("number of skipped iterations:   0 | number of nan iterations:   0 |"));
  EXPECT_THAT(shown, HasSubstr("iteration 1: no token of its batch counts"));
  EXPECT_THAT(shown, Not(HasSubstr("iteration 2: no token")));
  std::vector<std::string> losses;
  std::vector<bool> has_figure;
  std::istringstream lines(read_file(folder.path() / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    losses.push_back(nlohmann::json::parse(line)["loss"].dump());
    has_figure.push_back(nlohmann::json::parse(line).contains("reward"));
  }
  EXPECT_THAT(has_figure, ::testing::ElementsAre(false, false, true, true));
  EXPECT_THAT(losses, ::testing::ElementsAre("null", "null", "8.0", "2.0"));
}

TEST(RunLog, TakesTheMeanOfTheTwoRanksInTheMiddleAsTheMedian) {
  TemporaryFolder folder;
  config::RunConfig config = testing::tiny_config();
  config.train.out = folder.path().string();
  config.train.train_iters = 1;
  config.log.interval = 1;
  config.log.progress = "off";
  config.log.straggler = true;
  const plan::ResolvedRun run = plan::resolve(config);
  const auto median_ms = [&](const std::vector<double>& seconds) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/dev/null", "w"), std::fclose);
    RunLog log(run, {}, file.get());
    RunState state;
    state.iteration = 1;
    StepResult result;
    result.loss = result.tokens = 1;
    RunLog::Iteration done{.result = result, .step_s = 1, .global_batch = 4};
    done.times = TimesOverRanks{{TimerId::ForwardCompute}, {seconds}};
    log.iteration(state, done);
    EXPECT_EQ(log.last()->slowest_by_timer.at(0).median_ms, log.last()->straggler->median_ms);
    return log.last()->straggler->median_ms;
  };
  EXPECT_DOUBLE_EQ(median_ms({0.001, 0.003}), 2);
  EXPECT_DOUBLE_EQ(median_ms({0.004, 0.001, 0.002}), 2);
  EXPECT_DOUBLE_EQ(median_ms({0.009, 0.002, 0.001, 0.004}), 3);
}

}  // namespace
}  // namespace megatron::train
