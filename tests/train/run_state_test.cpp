#include "megatron/train/resume/run_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/checkpoint/files/manifest.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/save_run.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

class RunStateTest : public ::testing::Test {
 protected:
  // Takes steps [first, last) after loading (if first > 0) and saves; returns the losses.
  std::vector<double> train(int tp, int dp, std::int64_t first, std::int64_t last, bool save = false, int pp = 1,
                            const char* schedule = "", bool sp = false) const {
    auto config = testing::tiny_config(tp, dp);
    config.parallel.pp = pp;
    config.parallel.sp = sp;
    config.parallel.pp_schedule = schedule;
    if (*schedule) config.parallel.vpp = schedule::schedule_named(schedule).min_chunks;
    config.model.num_layers = 4;
    config.parallel.world_size = tp * pp * dp;
    const plan::ResolvedRun run = plan::resolve(config);
    std::vector<double> losses;
    comm::run_ranks(tp * pp * dp, [&](const comm::Group& world) {
      kernels::configure_thread(1);
      Engine engine(run, world, at::kCPU);
      RunState state;
      if (first > 0) {
        state = load_run(folder_, engine);
        EXPECT_EQ(state.iteration, first);
        EXPECT_EQ(state.consumed_samples, first * 4);
        EXPECT_EQ(state.schedule_samples, first * 4 - 4);
        EXPECT_EQ(state.skipped_iterations, 1);
        EXPECT_EQ(engine.optimizer.steps(), first);
      }
      for (std::int64_t i = first; i < last; ++i) {
        const StepResult result = testing::take_step(run, engine, i);
        if (world.rank() == 0) losses.push_back(result.loss);
      }
      state = {
          .iteration = last, .consumed_samples = last * 4, .schedule_samples = last * 4 - 4, .skipped_iterations = 1};
      if (save) testing::save_run(folder_, state, engine, "a = 1\n", 2);
    });
    return losses;
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path() / "run";
};

TEST_F(RunStateTest, TheSameLayoutGoesOnBitForBit) {
  const auto straight = train(2, 2, 0, 6);
  train(2, 2, 0, 3, /*save=*/true);
  const auto resumed = train(2, 2, 3, 6);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(resumed[i], straight[i + 3]) << "step " << i + 4;
}

TEST_F(RunStateTest, TheSamePipelineGoesOnBitForBit) {
  const auto straight = train(2, 1, 0, 6, false, 2, "zb-v", true);
  train(2, 1, 0, 3, /*save=*/true, 2, "zb-v", true);
  const auto resumed = train(2, 1, 3, 6, false, 2, "zb-v", true);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(resumed[i], straight[i + 3]) << "step " << i + 4;
}

TEST_F(RunStateTest, EveryOtherLayoutGoesOnToRounding) {
  const auto straight = train(1, 1, 0, 6);
  train(2, 2, 0, 3, /*save=*/true);
  for (const auto& [tp, dp] : {std::pair{1, 1}, {1, 4}, {2, 1}, {3, 1}, {3, 2}, {6, 1}}) {
    const auto resumed = train(tp, dp, 3, 6);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(resumed[i], straight[i + 3], 1e-11) << "tp " << tp << " dp " << dp << " step " << i + 4;
  }
}

TEST_F(RunStateTest, CheckpointsOfPipelinesGoOnInEveryLayoutAndTheTiedEmbeddingIsSavedOnce) {
  const auto straight = train(1, 1, 0, 6);
  struct Pipe {
    int tp, pp;
    const char* schedule;
    bool sp;
  };
  for (const Pipe& from : {Pipe{1, 2, "", false}, {2, 2, "zb-v", true}, {1, 4, "zb-h1", false}}) {
    fs::remove_all(folder_);
    train(from.tp, 1, 0, 3, /*save=*/true, from.pp, from.schedule, from.sp);
    const auto manifest = checkpoint::read_manifest(checkpoint::find_checkpoint(folder_));
    std::int64_t rows = 0;
    for (const auto& slice : manifest.tensors.at("embedding.word_embeddings.weight").slices) rows += slice.box.shape[0];
    EXPECT_EQ(rows, 61);
    for (const Pipe& to : {Pipe{1, 1, "", false}, {2, 2, "", false}, {1, 2, "zb-v", false}}) {
      const auto resumed = train(to.tp, 1, 3, 6, false, to.pp, to.schedule, to.sp);
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(resumed[i], straight[i + 3], 1e-11) << "pp " << from.pp << " to pp " << to.pp << " step " << i + 4;
    }
  }
}

TEST_F(RunStateTest, CountersThatNoRunArrivesAtTogetherAreRefused) {
  const checkpoint::Metadata right = {{"consumed_samples", "240"},
                                      {"schedule_samples", "236"},
                                      {"skipped_iterations", "1"},
                                      {"validated_iteration", "50"},
                                      {"optimizer_steps", "59"}};
  const auto error_of = [&](const std::string& name, const std::string& value) {
    checkpoint::Manifest manifest{.iteration = 60, .metadata = right, .files = {}, .tensors = {}};
    manifest.metadata[name] = value;
    try {
      EXPECT_EQ(run_state_of(manifest, folder_).iteration, 60);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const auto& [name, value] : right) EXPECT_EQ(error_of(name, value), "");
  EXPECT_EQ(error_of("optimizer_steps", "0"), "") << "reset";
  EXPECT_EQ(error_of("skipped_batches", "[9,7]"), "");
  EXPECT_EQ(error_of("recent_losses", "[2.5,3]"), "");
  const std::string huge = "4611686018427387912";
  for (const char* ahead : {"schedule_samples", "optimizer_steps"}) {  // with checkpoint.override_ckpt_iteration
    checkpoint::Manifest manifest{.iteration = 60, .metadata = right, .files = {}, .tensors = {}};
    manifest.metadata[ahead] = "900";
    EXPECT_THROW(run_state_of(manifest, folder_), ConfigError) << ahead;
    manifest.metadata["renumbered"] = "true";
    EXPECT_TRUE(run_state_of(manifest, folder_).renumbered) << ahead;
  }
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{{"consumed_samples", "59"},
                                                                                    {"consumed_samples", huge},
                                                                                    {"consumed_samples", "\"abc\""},
                                                                                    {"consumed_samples", "-5"},
                                                                                    {"schedule_samples", "241"},
                                                                                    {"schedule_samples", huge},
                                                                                    {"skipped_iterations", "61"},
                                                                                    {"validated_iteration", "61"},
                                                                                    {"optimizer_steps", "61"},
                                                                                    {"rollbacks", "-1"},
                                                                                    {"skipped_batches", "7"},
                                                                                    {"skipped_batches", "[1.5]"},
                                                                                    {"skipped_batches", "[\"7\"]"},
                                                                                    {"recent_losses", "[null]"},
                                                                                    {"recent_losses", "[1"}})
    EXPECT_NE(error_of(name, value).find("\"" + name + "\""), std::string::npos) << name << " " << value;
}

TEST_F(RunStateTest, ACheckpointWithoutTheCountersOfARunIsAClearError) {
  const plan::ResolvedRun run = plan::resolve(testing::tiny_config());
  Engine engine(run, {}, at::kCPU);
  checkpoint::save(folder_, 1, sharded_tensors(engine), {{"consumed_samples", "-4"}}, {});
  try {
    load_run(folder_, engine);
    FAIL() << "loaded";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("\"consumed_samples\""), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace megatron::train
