#include "megatron/train/resume/chosen_iteration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/options.h"
#include "megatron/kernels/runtime.h"
#include "megatron/train/inputs.h"
#include "megatron/train/resume/resume.h"
#include "megatron/train/resume/resumed_batch.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/save_run.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ChosenIterationTest : public ::testing::Test {
 protected:
  config::RunConfig config(int tp = 1, int dp = 1) const {
    auto config = testing::tiny_config(tp, dp);
    config.train.out = (folder_ / "run").string();
    return config;
  }
  config::RunConfig starting_at(std::int64_t iteration, const char* out, int tp = 1, int dp = 1) const {
    config::RunConfig options = config(tp, dp);
    options.train.out = (folder_ / out).string();
    options.checkpoint.load = (folder_ / "run").string();
    options.checkpoint.ckpt_step = iteration;
    return options;
  }
  fs::path iteration(int number) const { return folder_ / "run/checkpoints" / checkpoint::iteration_name(number); }

  // Takes `steps` steps from where the run starts, and saves after each. Returns where it has started.
  static std::int64_t train(config::RunConfig options, int steps, std::vector<double>* losses = nullptr) {
    name_chosen_iteration(options);
    const plan::ResolvedRun run = plan::resolve(options);
    std::int64_t from = -1;
    comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      Engine engine(run, world, at::kCPU);
      RunState state = start_run(run, engine).state;
      const std::int64_t begin = state.iteration;
      if (world.rank() == 0) from = begin;
      for (std::int64_t i = begin; i < begin + steps; ++i) {
        const double loss = testing::take_step(run, engine, i).loss;
        if (world.rank() == 0 && losses != nullptr) losses->push_back(loss);
        state.iteration = i + 1;
        state.consumed_samples = state.schedule_samples = 4 * (i + 1);
        testing::save_run(save_folder(options), state, engine, config::save_toml(run.config), 0);
      }
    });
    return from;
  }

  // What the user is told when the run starts: the last message.
  static std::string told(config::RunConfig options) {
    name_chosen_iteration(options);
    const plan::ResolvedRun run = plan::resolve(options);
    Engine engine(run, {}, at::kCPU);
    const Start start = start_run(run, engine);
    return start.messages.empty() ? "" : start.messages.back();
  }

  static std::string refusal(config::RunConfig options) {
    try {
      name_chosen_iteration(options);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(ChosenIterationTest, StartsARunInAnyLayout) {
  std::vector<double> straight, other;
  ASSERT_EQ(train(config(), 4, &straight), 0);
  for (const auto& [tp, dp] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
    other.clear();
    EXPECT_EQ(train(starting_at(2, ("other" + std::to_string(2 * tp + dp)).c_str(), tp, dp), 2, &other), 2);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(other.at(i), straight[2 + i], 1e-11) << tp << dp;
  }
  EXPECT_EQ(train(starting_at(2, "other3"), 0), 4) << "the same command resumes from its own";
}

TEST_F(ChosenIterationTest, MayBeTheFolderThatIsNamed) {
  train(config(), 2);
  config::RunConfig options = starting_at(1, "other");
  for (const fs::path& load : {iteration(1), iteration(1) / "", iteration(1).parent_path()}) {
    options.checkpoint.load = load.string();
    name_chosen_iteration(options);
    EXPECT_EQ(fs::path(options.checkpoint.load) / "", iteration(1) / "");
  }
}

TEST_F(ChosenIterationTest, IsRefusedWithThoseThatAreThere) {
  train(config(), 3);
  EXPECT_THAT(refusal(starting_at(9, "other")), HasSubstr("/run: 1, 2, 3\n  fix:  --ckpt-step 3"));
  fs::remove_all(iteration(1));
  EXPECT_THAT(refusal(starting_at(1, "other")), HasSubstr("/run: 2, 3\n  fix:  --ckpt-step 2"));
  config::RunConfig options = starting_at(2, "other");
  options.checkpoint.load = (folder_ / "absent").string();
  EXPECT_THAT(refusal(options), HasSubstr("/absent: none"));
  options.checkpoint.load = iteration(3).string();
  EXPECT_THAT(refusal(options), HasSubstr("fix:  leave --ckpt-step out"));
}

TEST_F(ChosenIterationTest, GoesBackInARunsOwnFolderOnce) {
  std::vector<double> straight, again;
  train(config(), 4, &straight);
  EXPECT_EQ(train(starting_at(2, "run"), 0), 2) << "nothing is saved yet: the same command begins there again";
  EXPECT_EQ(train(starting_at(2, "run"), 1, &again), 2);
  EXPECT_EQ(again.at(0), straight[2]);
  EXPECT_EQ(train(starting_at(2, "run"), 1), 3) << "the same command resumes";
  EXPECT_EQ(train(starting_at(1, "run"), 0), 1) << "another iteration";
  config::RunConfig evaluating = starting_at(2, "run");
  evaluating.train.skip_train = true;
  EXPECT_EQ(train(evaluating, 0), 2) << "what is evaluated is what was asked for";
  EXPECT_EQ(train(config(), 0), 4);
}

TEST_F(ChosenIterationTest, IsNotStartedFromAgainWithoutAWord) {
  train(config(), 4);
  EXPECT_EQ(told(starting_at(2, "run")), "");
  train(starting_at(2, "run"), 1);
  EXPECT_EQ(told(starting_at(2, "run")),
            "note: checkpoint.ckpt_step 2: the run has started from there before, and resumes from what it has saved "
            "since; to start from there again, save elsewhere: --train.out FOLDER");
  EXPECT_EQ(told(config()), "");
  config::RunConfig elsewhere = starting_at(2, "other");
  EXPECT_EQ(told(elsewhere), "");
  train(elsewhere, 1);
  elsewhere.train.skip_train = true;  // which evaluates what the run has come to
  EXPECT_THAT(told(elsewhere), HasSubstr("warning: checkpoint.ckpt_step 2 is not followed: the run has checkpoints"));
  config::RunConfig finetuning = starting_at(1, "run");
  finetuning.checkpoint.finetune = true;
  EXPECT_THAT(told(finetuning), HasSubstr("warning: checkpoint.ckpt_step 1 is not followed"));
}

TEST_F(ChosenIterationTest, IsNotNeededOnceTheRunHasSavedSince) {
  train(config(), 4);
  EXPECT_EQ(train(starting_at(2, "run"), 1), 2);
  fs::remove_all(iteration(2));  // as checkpoint.keep_last does
  EXPECT_EQ(train(starting_at(2, "run"), 0), 3) << "the same command resumes";
  config::RunConfig evaluating = starting_at(2, "run");
  evaluating.train.skip_train = true;
  EXPECT_THAT(refusal(evaluating), HasSubstr("/run: 1, 3, 4\n"));
  fs::remove_all(iteration(1));
  EXPECT_THAT(refusal(starting_at(1, "run")), HasSubstr("/run: 3, 4\n")) << "no run has started from that";
}

TEST_F(ChosenIterationTest, IsNoneOfAnotherProgramWhereTheRunHasSavedSince) {
  train(config(), 3);
  fs::remove_all(iteration(1));
  fs::create_directories(iteration(1) / "mp_rank_00");
  EXPECT_THAT(refusal(starting_at(1, "run")),
              HasSubstr("another program has\n  fix:  save elsewhere, to begin from it: "
                        "--train.out FOLDER"));
  config::RunConfig options = starting_at(1, "elsewhere");
  options.checkpoint.save = options.checkpoint.load = iteration(1).parent_path().string();
  EXPECT_THAT(refusal(options), HasSubstr(": --save FOLDER"));
  EXPECT_EQ(refusal(starting_at(1, "other")), "");
}

TEST_F(ChosenIterationTest, MayHaveAnotherNumberOnce) {
  train(config(), 3);
  config::RunConfig options = starting_at(3, "other");
  options.checkpoint.override_ckpt_iteration = 1;
  name_chosen_iteration(options);
  EXPECT_EQ(resumed_batch(options).samples, 4);
  const plan::ResolvedRun run = plan::resolve(options);
  Engine engine(run, {}, at::kCPU);
  const Start start = start_run(run, engine);
  EXPECT_EQ(start.state.iteration, 1);
  EXPECT_EQ(start.state.consumed_samples, 4);
  EXPECT_EQ(start.state.schedule_samples, 12) << "the learning rate continues";
  EXPECT_EQ(engine.optimizer.steps(), 3);
  EXPECT_THAT(start.messages.back(), HasSubstr("iteration 3 counts as 1, and sample 4 is the next"));
  testing::take_step(run, engine, 1);
  RunState after = start.state;
  after.iteration = 2, after.consumed_samples = 8, after.schedule_samples = 16;
  testing::save_run(save_folder(options), after, engine, config::save_toml(run.config), 0);
  Engine again(run, {}, at::kCPU);
  EXPECT_EQ(start_run(run, again).state.iteration, 2) << "the same command resumes";

  options = config();  // in its own folder, too
  options.checkpoint.load = (folder_ / "run").string();
  options.checkpoint.override_ckpt_iteration = 0;
  EXPECT_EQ(train(options, 1), 0);
  EXPECT_EQ(train(options, 0), 1);
}

}  // namespace
}  // namespace megatron::train
