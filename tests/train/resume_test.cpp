#include "megatron/train/resume/resume.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/manifest.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/options.h"
#include "megatron/kernels/runtime.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/save_run.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ResumeTest : public ::testing::Test {
 protected:
  config::RunConfig config(int tp = 1, int dp = 1) const {
    auto config = testing::tiny_config(tp, dp);
    config.train.out = folder_.string();
    return config;
  }

  fs::path checkpoints() const { return folder_ / "checkpoints"; }
  fs::path iteration(int number) const { return checkpoints() / checkpoint::iteration_name(number); }

  // Saves after steps 1, 2 and 3; a step changes every weight.
  void save_three(const config::RunConfig& config) const {
    const plan::ResolvedRun run = plan::resolve(config);
    comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      Engine engine(run, world, at::kCPU);
      for (int i = 0; i < 3; ++i) {
        testing::take_step(run, engine, i);
        const RunState state{.iteration = i + 1, .consumed_samples = 4 * (i + 1), .schedule_samples = 4 * (i + 1)};
        testing::save_run(checkpoints(), state, engine, config::save_toml(run.config), 0);
      }
    });
  }

  struct Begun {
    Start start;
    std::string error;
    std::vector<double> losses;  // of the next two steps
  };
  static Begun begin(const config::RunConfig& config) {
    const plan::ResolvedRun run = plan::resolve(config);
    Begun begun;
    std::atomic<int> agreeing = 0;
    comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      Engine engine(run, world, at::kCPU);
      try {
        const Start start = start_run(run, engine);
        ++agreeing;
        for (std::int64_t i = start.state.iteration; i < start.state.iteration + 2; ++i) {
          const double loss = testing::take_step(run, engine, i).loss;
          if (world.rank() == 0) begun.losses.push_back(loss);
        }
        if (world.rank() == 0) begun.start = start;
      } catch (const ConfigError& e) {
        if (world.rank() == 0) begun.error = e.what();
      }
    });
    EXPECT_TRUE(agreeing == 0 || agreeing == run.grid.world_size());
    return begun;
  }

  static void flip_byte(const fs::path& file, std::int64_t offset) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(offset);
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(offset);
    stream.put(byte);
  }

  static std::string all(const std::vector<std::string>& messages) {
    std::string text;
    for (const std::string& message : messages) text += message + "\n";
    return text;
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path() / "run";
};

TEST_F(ResumeTest, WithoutDamageTheNewestCheckpointIsTakenAndNothingIsSaid) {
  save_three(config(2, 1));
  const auto begun = begin(config(2, 1));
  EXPECT_EQ(begun.error, "");
  EXPECT_EQ(begun.start.state.iteration, 3);
  EXPECT_THAT(all(begun.start.messages), Not(HasSubstr("WARNING")));
}

TEST_F(ResumeTest, EachKindOfDamageFallsBackToTheCheckpointBeforeAndIsNamed) {
  const auto file = [&](int number) { return iteration(number) / "rank_00001.safetensors"; };
  const std::vector<std::pair<std::function<void()>, std::string>> damages = {
      {[&] { flip_byte(file(3), static_cast<std::int64_t>(fs::file_size(file(3))) - 9); },
       "do not match their checksum"},
      {[&] { fs::resize_file(file(3), fs::file_size(file(3)) - 1); }, "must be as long as its manifest says"},
      {[&] { fs::remove(file(3)); }, "must be a file of the checkpoint"},
      {[&] { fs::remove(iteration(3) / "manifest.json"); }, "manifest.json"},
      {[&] { fs::remove_all(iteration(3)); }, "iter_0000003"},
      {[&] { flip_byte(iteration(3) / "manifest.json", 200); }, "manifest"},
  };
  for (std::size_t k = 0; k < damages.size(); ++k) {
    fs::remove_all(folder_);
    save_three(config(2, 1));
    const auto undamaged = begin([&] {
      auto options = config(2, 1);
      options.checkpoint.load = iteration(2).string();
      options.train.out = (folder_ / "elsewhere").string();
      return options;
    }());
    ASSERT_EQ(undamaged.start.state.iteration, 2) << undamaged.error;
    damages[k].first();
    const auto begun = begin(config(2, 1));
    EXPECT_EQ(begun.error, "") << k;
    EXPECT_EQ(begun.start.state.iteration, 2) << k;
    EXPECT_EQ(begun.losses, undamaged.losses) << k;
    EXPECT_THAT(all(begun.start.messages), HasSubstr("WARNING: a damaged checkpoint is left out: ")) << k;
    EXPECT_THAT(all(begun.start.messages), HasSubstr(damages[k].second)) << k;
    EXPECT_THAT(all(begun.start.messages), HasSubstr("fell back to another checkpoint, " + iteration(2).string())) << k;
  }
}

TEST_F(ResumeTest, OnesOfANewerVersionArePassedOverByNameAndLeftAsTheyAre) {
  save_three(config());
  write_file(iteration(3) / "manifest.json", R"({"format":"megatron-cpp checkpoint","version":7})");
  const auto begun = begin(config());
  EXPECT_EQ(begun.error, "");
  EXPECT_EQ(begun.start.state.iteration, 2);
  EXPECT_THAT(all(begun.start.messages), HasSubstr("WARNING: a checkpoint of a newer version is left out: "));
  EXPECT_THAT(all(begun.start.messages), HasSubstr("version 7"));
  EXPECT_THAT(all(begun.start.messages), Not(HasSubstr("damaged")));
  EXPECT_FALSE(checkpoint::is_marked_damaged(iteration(3)));
}

TEST_F(ResumeTest, DamageIsMarkedInTheRunsOwnFolderAlone) {
  save_three(config());
  const fs::path file = iteration(3) / "rank_00000.safetensors";
  const auto last = static_cast<std::int64_t>(fs::file_size(file)) - 9;
  flip_byte(file, last);
  auto other = config();
  other.train.out = (folder_ / "other").string();
  other.checkpoint.load = folder_.string();
  EXPECT_EQ(begin(other).start.state.iteration, 2);
  EXPECT_FALSE(checkpoint::is_marked_damaged(iteration(3))) << "the folder of another run";
  EXPECT_EQ(begin(config()).start.state.iteration, 2);
  EXPECT_TRUE(checkpoint::is_marked_damaged(iteration(3)));
}

TEST_F(ResumeTest, AMarkGoesWhenTheRepairedCheckpointIsLoadedAndAllOfItIsWhole) {
  save_three(config());
  const fs::path file = iteration(3) / "rank_00000.safetensors";
  const auto last = static_cast<std::int64_t>(fs::file_size(file)) - 9;
  flip_byte(file, last);
  EXPECT_EQ(begin(config()).start.state.iteration, 2);
  flip_byte(file, last);
  EXPECT_EQ(begin(config()).start.state.iteration, 3);
  EXPECT_FALSE(checkpoint::is_marked_damaged(iteration(3)));

  checkpoint::mark_damaged(iteration(3), "a byte of a file that is not needed");
  checkpoint::Manifest manifest = checkpoint::read_manifest(iteration(3));
  manifest.files.push_back({.name = "more.safetensors", .size = 4, .block_hashes = {0}});
  write_file(iteration(3) / "manifest.json", checkpoint::manifest_text(manifest));
  write_file(iteration(3) / "more.safetensors", "four");
  EXPECT_EQ(begin(config()).start.state.iteration, 3);
  EXPECT_TRUE(checkpoint::is_marked_damaged(iteration(3)));
}

TEST_F(ResumeTest, SeveralDamagedOnesArePassedAndLatestNeedsToSayNothing) {
  save_three(config());
  flip_byte(iteration(3) / "rank_00000.safetensors", 5000);
  fs::remove(iteration(2) / "rank_00000.safetensors");
  write_file(checkpoints() / "latest", "nonsense\n");
  EXPECT_EQ(begin(config()).start.state.iteration, 1);
  fs::remove(checkpoints() / "latest");
  EXPECT_EQ(begin(config()).start.state.iteration, 1);
}

TEST_F(ResumeTest, ALatestThatNamesNothingIsWrittenAnew) {
  save_three(config());
  for (const char* wrong : {"iter_0000002\n", "nonsense\n", ""}) {
    fs::remove_all(iteration(2));
    write_file(checkpoints() / "latest", wrong);
    const auto begun = begin(config());
    EXPECT_EQ(begun.error, "");
    EXPECT_EQ(begun.start.state.iteration, 3);
    EXPECT_EQ(read_file(checkpoints() / "latest"), "iter_0000003\n") << "others read it too";
  }
  fs::remove(iteration(3) / "manifest.json");
  EXPECT_EQ(begin(config()).start.state.iteration, 1);
  EXPECT_EQ(read_file(checkpoints() / "latest"), "iter_0000001\n") << "no checkpoint without it";
}

TEST_F(ResumeTest, WithNothingWholeTheRunDoesNotBeginAnew) {
  save_three(config(1, 2));
  for (const int number : {1, 2, 3}) flip_byte(iteration(number) / "rank_00000.safetensors", 5000);
  const auto begun = begin(config(1, 2));
  EXPECT_THAT(begun.error, HasSubstr("a run resumes from a whole checkpoint of this version; none is."));
  for (const int number : {1, 2, 3}) EXPECT_THAT(begun.error, HasSubstr(iteration(number).string()));
}

TEST_F(ResumeTest, AnotherModelIsAnErrorAndNoReasonToFallBack) {
  save_three(config());
  auto other = config();
  other.model.num_layers = 1;
  EXPECT_THAT(begin(other).error, HasSubstr("model.num_layers must be 2"));
}

TEST_F(ResumeTest, FineTuningTakesTheWeightsAloneUntilTheRunHasItsOwnCheckpoint) {
  save_three(config());
  auto tuning = config(1, 2);
  tuning.train.out = (folder_ / "tuned").string();
  tuning.checkpoint.load = folder_.string();
  tuning.checkpoint.finetune = true;
  const plan::ResolvedRun run = plan::resolve(tuning);
  const auto begun = begin(tuning);
  EXPECT_EQ(begun.error, "");
  EXPECT_TRUE(begun.start.weights_only);
  EXPECT_EQ(begun.start.state.iteration, 0);

  // The first loss is that of the weights after step 3, on the first batch.
  const plan::ResolvedRun whole = plan::resolve(config());
  Engine engine(whole, {}, at::kCPU);
  load_run(folder_, engine);
  EXPECT_NEAR(testing::take_step(whole, engine, 0).loss, begun.losses.at(0), 1e-12);
}

TEST_F(ResumeTest, AFreshOptimizerGoesOnAtTheSameIteration) {
  save_three(config());
  auto options = config();
  options.train.out = (folder_ / "fresh").string();
  options.checkpoint.load = folder_.string();
  options.checkpoint.no_load_optim = true;
  const plan::ResolvedRun run = plan::resolve(options);
  Engine engine(run, {}, at::kCPU);
  const Start start = start_run(run, engine);
  EXPECT_EQ(start.state.iteration, 3);
  EXPECT_EQ(engine.optimizer.steps(), 0);
  for (const auto& slice : engine.optimizer.state()) {
    if (slice.kind.empty()) continue;
    EXPECT_EQ(slice.flat.abs().max().item<double>(), 0) << slice.kind;
  }
  EXPECT_THAT(all(start.messages), HasSubstr("fresh exp_avg"));

  // The same command again resumes with the optimizer that this run has had meanwhile.
  testing::take_step(run, engine, 3);
  testing::save_run(folder_ / "fresh/checkpoints", start.state, engine, config::save_toml(run.config), 0);
  Engine again(run, {}, at::kCPU);
  EXPECT_THAT(all(start_run(run, again).messages), ::testing::Not(HasSubstr("fresh exp_avg")));
  EXPECT_EQ(again.optimizer.steps(), 1);
}

// With magnitudes, on weights that were drawn and on those of another run.
TEST_F(ResumeTest, AdaptersGoOnInAnotherLayout) {
  save_three(config());
  for (const bool based : {false, true}) {
    auto options = config(2, 1);
    options.train.out = (folder_ / (based ? "based" : "drawn")).string();
    options.lora.rank = 3;
    options.lora.dora = true;
    if (based) options.lora.base = iteration(3).string();
    const plan::ResolvedRun run = plan::resolve(options);
    std::vector<double> straight;
    comm::run_ranks(2, [&](const comm::Group& world) {
      kernels::configure_thread(1);
      Engine engine(run, world, at::kCPU);
      start_run(run, engine);
      for (int i = 0; i < 4; ++i) {
        const RunState state{.iteration = i, .consumed_samples = 4 * i, .schedule_samples = 4 * i};
        if (i == 2)
          testing::save_run(fs::path(options.train.out) / "checkpoints", state, engine, config::save_toml(run.config),
                            0);
        const double loss = testing::take_step(run, engine, i).loss;
        if (world.rank() == 0) straight.push_back(loss);
      }
    });
    options.parallel.tp = options.parallel.world_size = 1;
    const auto begun = begin(options);
    EXPECT_EQ(begun.error, "");
    EXPECT_EQ(begun.start.state.iteration, 2);
    ASSERT_EQ(begun.losses.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(begun.losses[i], straight[i + 2], 1e-10) << "step " << i + 3;
  }
}

// Two ranks on two machines: the working folder of each is another, and the run's folder is named from there.
class ResumeOnTwoMachines : public ResumeTest {
 protected:
  fs::path machine(int rank) const { return folder_ / ("machine" + std::to_string(rank)); }
  fs::path iteration_on(int rank, int number) const {
    return machine(rank) / "run/checkpoints" / checkpoint::iteration_name(number);
  }

  // Both have the checkpoints of three steps.
  void SetUp() override {
    ResumeTest::SetUp();
    save_three(config(2, 1));
    for (const int rank : {0, 1}) {
      fs::create_directories(machine(rank) / "run");
      fs::copy(checkpoints(), machine(rank) / "run/checkpoints", fs::copy_options::recursive);
    }
  }

  config::RunConfig config_there() const {
    auto config = testing::tiny_config(2, 1);
    config.train.out = "run";
    return config;
  }

  // What each rank begins with, or its error.
  static std::vector<std::string> begin_there(const fs::path& folder, const config::RunConfig& config) {
    const plan::ResolvedRun run = plan::resolve(config);
    std::vector<std::string> answers(2);
    const auto body = [&](const comm::Group& world) {
      kernels::configure_thread(1);
      const std::string place = "machine" + std::to_string(world.rank());
      ASSERT_EQ(::unshare(CLONE_FS), 0) << "a thread's own working folder";
      ASSERT_EQ(::chdir((folder / place).c_str()), 0);
      Engine engine(run, world, at::kCPU);
      std::string& answer = answers.at(static_cast<std::size_t>(world.rank()));
      try {
        const Start start = start_run(run, engine);
        answer = "iteration " + std::to_string(start.state.iteration) + (start.weights_only ? ", weights" : "");
      } catch (const ConfigError& e) {
        answer = e.what();
      }
    };
    comm::run_ranks(2, body, std::chrono::seconds(60));
    return answers;
  }

  void expect_one_clear_error(const std::vector<std::string>& answers) const {
    EXPECT_EQ(answers[0], answers[1]);
    EXPECT_THAT(answers[0], HasSubstr("All ranks must see one file system"));
    EXPECT_THAT(answers[0], HasSubstr("rank 1: "));
  }
};

TEST_F(ResumeOnTwoMachines, ARankThatSeesNoCheckpointIsAnErrorOfAll) {
  fs::remove_all(machine(1) / "run");
  expect_one_clear_error(begin_there(folder_, config_there()));
}

TEST_F(ResumeOnTwoMachines, RankZeroSaysWhichCheckpointWhateverLatestSaysElsewhere) {
  write_file(machine(1) / "run/checkpoints/latest", "iter_0000002\n");
  EXPECT_EQ(begin_there(folder_, config_there()), std::vector<std::string>(2, "iteration 3"));
  fs::remove_all(machine(0) / "run");
  expect_one_clear_error(begin_there(folder_, config_there()));
}

TEST_F(ResumeOnTwoMachines, AnotherCheckpointOfTheSameNameIsAnErrorOfAll) {
  fs::remove_all(iteration_on(1, 3));
  fs::copy(iteration_on(1, 2), iteration_on(1, 3));
  expect_one_clear_error(begin_there(folder_, config_there()));
}

TEST_F(ResumeOnTwoMachines, WeightsOfAnotherRunAreCheckedToo) {
  auto tuning = config_there();
  tuning.train.out = "tuned";
  tuning.checkpoint.load = "run";
  tuning.checkpoint.finetune = true;
  EXPECT_EQ(begin_there(folder_, tuning), std::vector<std::string>(2, "iteration 0, weights"));
  fs::remove_all(iteration_on(1, 3));
  expect_one_clear_error(begin_there(folder_, tuning));
}

TEST_F(ResumeOnTwoMachines, DamageThatOneRankSeesIsDamageForAll) {
  fs::remove(iteration_on(1, 3) / "rank_00001.safetensors");
  EXPECT_EQ(begin_there(folder_, config_there()), std::vector<std::string>(2, "iteration 2"));
}

}  // namespace
}  // namespace megatron::train
