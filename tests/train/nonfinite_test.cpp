#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "megatron/checkpoint/files/folder.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/train/trainer.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/tiny_run.h"
#include "tests/train/tiny_text.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

/// What the run throws, or which of its outcomes it has.
std::string end_of(const config::RunConfig& config) {
  const plan::ResolvedRun run = plan::resolve(config);
  Outcome outcome{};
  try {
    comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      const Outcome own = train(run, /*eod=*/0, world, at::kCPU, [] { return false; });
      if (world.rank() == 0) outcome = own;
    });
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return outcome == Outcome::Done ? "done" : "another end";
}

TEST(NonfiniteSteps, AtTheEndFailTheRunAndItsGoodCheckpointsStay) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "run";
  testing::write_tiny_text((folder.path() / "text").string(), 60);
  auto config = testing::tiny_config(1, 2);  // of six steps
  config.data.data_path = {(folder.path() / "text").string()};
  config.data.split = "80,20,0";
  config.train.out = out.string();
  config.log.progress = "off";
  config.checkpoint.save_interval = 1;
  config.checkpoint.keep_last = 1;
  config.guard.on_nan = "skip";
  config.guard.inject_faults = {"nan:2", "nan:4", "nan:5", "nan:6"};
  for (int call = 1; call <= 2; ++call)  // the second finds all steps done
    EXPECT_THAT(end_of(config), ::testing::HasSubstr("none in its last 3 steps"));
  EXPECT_THAT(checkpoint::iterations_in(out / "checkpoints"), ::testing::ElementsAre(3, 6));
  std::ifstream in(out / "events.jsonl");
  std::string last;
  for (std::string line; std::getline(in, line);) last = line;
  EXPECT_THAT(last, ::testing::HasSubstr("\"stopped\"")) << "a supervisor must know";

  config.train.out = (folder.path() / "left").string();
  config.train.exit_interval = 5;
  EXPECT_EQ(end_of(config), "another end") << "it may find finite ones when it resumes";
  config.train.exit_interval = 0;
  config.train.out = (folder.path() / "one").string();
  config.guard.inject_faults = {"nan:6"};
  EXPECT_EQ(end_of(config), "done") << "one batch may be to blame";
}

}  // namespace
}  // namespace megatron::train
