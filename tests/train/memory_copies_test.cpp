#include "megatron/train/resume/memory_copies.h"

#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/checkpoint_size.h"
#include "megatron/train/inputs.h"
#include "megatron/train/resume/chosen_iteration.h"
#include "megatron/train/resume/resumed_batch.h"
#include "megatron/train/trainer.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/tiny_run.h"
#include "tests/train/tiny_text.h"

// Runs that are cut off and resume from what their nodes keep in memory. Ranks are threads; a node is a folder.
namespace megatron::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MemoryCopiesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    testing::write_tiny_text((folder_ / "text").string(), 40);
    for (const char* node : {"0", "1", "2", "3"}) fs::create_directory(folder_ / node);
  }

  config::RunConfig config(const std::string& name, int tp, int dp) const {
    auto config = testing::tiny_config(tp, dp);
    config.data.data_path = {(folder_ / "text").string()};
    config.data.split = "100,0,0";
    config.train.out = (folder_ / name).string();
    config.log.progress = "off";
    config.checkpoint.async_save = false;
    config.checkpoint.memory_interval = 1;
    return config;
  }

  // Trains on `nodes` nodes of as many ranks each; the step after `steps` iterations ends it with an error.
  void run(const config::RunConfig& config, int nodes, std::int64_t steps = 1000) const {
    const plan::ResolvedRun resolved = plan::resolve(config);
    const int world_size = resolved.grid.world_size();
    std::vector<plan::ResolvedRun> of_rank(static_cast<std::size_t>(world_size), resolved);
    for (int rank = 0; rank < world_size; ++rank)
      of_rank[static_cast<std::size_t>(rank)].config.checkpoint.memory_folder =
          (folder_ / std::to_string(rank * nodes / world_size)).string();
    std::atomic<std::int64_t> begun = 0;
    comm::run_ranks(world_size, [&](const comm::Group& world) {
      kernels::configure_thread(1);
      train(of_rank[static_cast<std::size_t>(world.rank())], /*eod=*/0, world, at::kCPU, [&] {
        if (world.rank() == 0 && begun.fetch_add(1) == steps) throw std::runtime_error("cut off");
        return false;
      });
    });
  }

  void cut_off(const config::RunConfig& config, int nodes, std::int64_t steps) const {
    try {
      run(config, nodes, steps);
      ADD_FAILURE() << "it ended";
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("cut off"));
    }
  }

  std::vector<double> losses(const std::string& name) const {
    std::ifstream in(folder_ / name / "metrics.jsonl");
    std::vector<double> losses;
    for (std::string line; std::getline(in, line);)
      if (const json entry = json::parse(line); entry.contains("loss")) losses.push_back(entry["loss"].get<double>());
    return losses;
  }

  // What nodes keep: the runs' folders.
  std::vector<fs::path> kept(int node) const {
    std::vector<fs::path> folders;
    for (const auto& entry : fs::directory_iterator(folder_ / std::to_string(node))) folders.push_back(entry.path());
    return folders;
  }

  // Resumes; what the log says of that.
  std::string resume(const config::RunConfig& config, int nodes) const {
    ::testing::internal::CaptureStdout();
    run(config, nodes);
    const std::string text = ::testing::internal::GetCapturedStdout();
    const std::size_t begin = text.find(" > resumed from ");
    return begin == std::string::npos ? ""
                                      : text.substr(begin, text.find('\n', begin) - begin) +
                                            (text.find("came from the memory of other nodes") == std::string::npos
                                                 ? ""
                                                 : ", partly from other nodes");
  }

  const TemporaryFolder temporary_{"/dev/shm"};
  const fs::path folder_ = temporary_.path() / "run";
};

TEST_F(MemoryCopiesTest, ARunThatIsCutOffResumesAtItsLastIterationAndHasTheSameCurve) {
  auto whole = config("whole", 2, 2);
  whole.checkpoint.memory_interval = 0;
  run(whole, 1);
  const std::vector<double> expected = losses("whole");
  ASSERT_EQ(expected.size(), 6u);
  const auto cut = config("cut", 2, 2);
  cut_off(cut, 1, 4);
  ASSERT_EQ(kept(0).size(), 1u);
  EXPECT_FALSE(checkpoint::has_checkpoint(folder_ / "cut/checkpoints")) << "nothing is on the disk";
  EXPECT_THAT(resume(cut, 1), HasSubstr("in memory at iteration 4, 0 of them skipped"));
  EXPECT_EQ(losses("cut"), expected);
  EXPECT_THAT(kept(0), IsEmpty()) << "it is saved";
  EXPECT_TRUE(checkpoint::has_checkpoint(folder_ / "cut/checkpoints"));
  // In another layout, from a node that holds everything.
  const auto other = config("other", 2, 2);
  cut_off(other, 1, 3);
  auto less = config("other", 1, 2);
  EXPECT_THAT(resume(less, 1), HasSubstr("in memory at iteration 3"));
  const std::vector<double> resumed = losses("other");
  ASSERT_EQ(resumed.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(resumed[i], expected[i], 1e-10) << i;
}

TEST_F(MemoryCopiesTest, ANodeThatIsLostGetsItsPartFromItsNeighbour) {
  auto whole = config("whole", 1, 4);
  whole.optimizer.use_distributed_optimizer = true;
  whole.checkpoint.memory_interval = 0;
  run(whole, 1);
  for (const int nodes : {2, 4}) {
    for (int lost = 0; lost < nodes; lost += nodes - 1) {
      const std::string name = "lost" + std::to_string(nodes) + std::to_string(lost);
      auto options = config(name, 1, 4);
      options.optimizer.use_distributed_optimizer = true;
      cut_off(options, nodes, 4);
      for (const fs::path& folder : kept(lost)) fs::remove_all(folder);
      EXPECT_THAT(resume(options, nodes), HasSubstr("in memory at iteration 4, 0 of them skipped, partly from other"));
      EXPECT_EQ(losses(name), losses("whole"));
      for (int node = 0; node < nodes; ++node) EXPECT_THAT(kept(node), IsEmpty());
    }
  }
  // Fewer nodes and ranks than before: what two of four keep is enough, if none of the lost ones are neighbours.
  auto options = config("fewer", 1, 4);
  options.optimizer.use_distributed_optimizer = true;
  cut_off(options, 4, 4);
  for (const int lost : {0, 2})
    for (const fs::path& folder : kept(lost)) fs::remove_all(folder);
  for (const fs::path& folder : kept(3)) fs::rename(folder, folder_ / "0" / folder.filename());
  options.parallel.world_size = 2;
  EXPECT_THAT(resume(options, 2), HasSubstr("in memory at iteration 4, 0 of them skipped, partly from other"));
  const std::vector<double> resumed = losses("fewer"), expected = losses("whole");
  ASSERT_EQ(resumed.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(resumed[i], expected[i], 1e-10) << i;
}

TEST_F(MemoryCopiesTest, WhatWasSavedSinceARunWentBackComesFirst) {
  auto whole = config("run", 1, 2);
  whole.checkpoint.save_interval = 3;
  run(whole, 1);
  const std::vector<double> expected = losses("run");
  auto options = whole;
  options.checkpoint.load = whole.train.out;
  options.checkpoint.ckpt_step = 3;
  name_chosen_iteration(options);
  cut_off(options, 1, 1);
  EXPECT_THAT(resume(options, 1), HasSubstr("in memory at iteration 4"));
  EXPECT_EQ(losses("run"), expected);

  options = whole;  // another number
  options.checkpoint.load = whole.train.out;
  options.checkpoint.override_ckpt_iteration = 1;
  cut_off(options, 1, 1);
  EXPECT_THAT(resume(options, 1), HasSubstr("in memory at iteration 2"));

  options = whole;  // what is in memory from before does not count
  options.train.train_iters = 9;
  cut_off(options, 1, 1);
  options.checkpoint.load = whole.train.out;
  options.checkpoint.ckpt_step = 3;
  name_chosen_iteration(options);
  EXPECT_THAT(resume(options, 1), HasSubstr("/iter_0000003 at iteration 3"));
}

TEST_F(MemoryCopiesTest, TheNewestOfDiskAndMemoryIsTaken) {
  auto options = config("both", 1, 2);
  options.checkpoint.save_interval = 3;
  cut_off(options, 2, 5);
  EXPECT_THAT(resume(options, 2), HasSubstr("in memory at iteration 5"));
  auto again = config("again", 1, 2);
  again.checkpoint.save_interval = 3;
  again.checkpoint.memory_neighbours = false;
  cut_off(again, 2, 5);
  for (const fs::path& folder : kept(1)) fs::remove_all(folder);
  EXPECT_THAT(resume(again, 2), HasSubstr("iter_0000003 at iteration 3")) << "half of iteration 5 is lost";
  EXPECT_EQ(losses("again"), losses("both"));
}

TEST_F(MemoryCopiesTest, DamageIsLeftOutAndStaleFoldersAreNotTaken) {
  auto options = config("run", 1, 2);
  options.checkpoint.save_interval = 2;
  cut_off(options, 1, 5);
  ASSERT_EQ(kept(0).size(), 1u);
  const fs::path file = kept(0)[0] / "iter_0000005" / "rank_00001.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 9] = static_cast<char>(~bytes[bytes.size() - 9]);
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_THAT(resume(options, 1), HasSubstr("iter_0000004 at iteration 4"));
  // Another recipe: the samples come in another order.
  auto other = config("other", 1, 2);
  cut_off(other, 1, 3);
  ASSERT_EQ(kept(0).size(), 1u);
  other.train.seed += 1;
  EXPECT_EQ(resume(other, 1), "");
  // The run was started over: its folder was removed.
  auto fresh = config("fresh", 1, 2);
  cut_off(fresh, 1, 3);
  fs::remove_all(folder_ / "fresh");
  EXPECT_EQ(resume(fresh, 1), "");
  EXPECT_EQ(kept(0).size(), 1u) << "of the run that was removed: nobody can tell that it is gone for good";
  fs::remove_all(kept(0)[0]);
  // Somebody has set it back.
  auto back = config("back", 1, 2);
  back.checkpoint.save_interval = 2;
  cut_off(back, 1, 5);
  write_file(folder_ / "back/checkpoints/latest", "iter_0000002\n");
  EXPECT_THAT(resume(back, 1), HasSubstr("iter_0000002 at iteration 2"));
}

TEST_F(MemoryCopiesTest, AStartWithoutTheOptionSavesWhatIsLeftAndKeepsNoMore) {
  auto whole = config("whole", 1, 2);
  whole.checkpoint.memory_interval = 0;
  run(whole, 1);
  for (const int nodes : {1, 2}) {
    auto options = config(concat("run", nodes), 1, 2);
    options.checkpoint.save_interval = 2;
    cut_off(options, nodes, 5);
    auto without = options;
    without.checkpoint.memory_interval = 0;
    cut_off(without, nodes, 0);
    for (int node = 0; node < nodes; ++node) EXPECT_THAT(kept(node), IsEmpty());
    EXPECT_THAT(resume(without, nodes), HasSubstr("iter_0000005 at iteration 5")) << "it is on the disk";
    EXPECT_EQ(losses(concat("run", nodes)), losses("whole"));
  }
}

TEST_F(MemoryCopiesTest, WhatTheRunHasLeftBehindDoesNotComeBack) {
  auto options = config("run", 1, 2);
  options.checkpoint.save_interval = 2;
  cut_off(options, 1, 5);
  const fs::path place = kept(0).at(0), aside = folder_ / "aside";
  fs::rename(place, aside);
  auto without = options;
  without.checkpoint.memory_interval = 0;
  cut_off(without, 1, 0);  // a node that is away: it resumes from the disk
  fs::rename(aside, place);
  EXPECT_THAT(resume(options, 1), HasSubstr("iter_0000004 at iteration 4"));
}

TEST_F(MemoryCopiesTest, ACopyOfTheRunsFolderIsAnotherRun) {
  auto options = config("run", 1, 2);
  options.checkpoint.save_interval = 2;
  cut_off(options, 1, 5);
  fs::copy(folder_ / "run", folder_ / "copy", fs::copy_options::recursive);
  auto copy = config("copy", 1, 2);
  EXPECT_THAT(resume(copy, 1), HasSubstr("iter_0000004 at iteration 4"));
  EXPECT_EQ(kept(0).size(), 1u) << "the run's own";
  EXPECT_THAT(resume(options, 1), HasSubstr("in memory at iteration 5"));
}

TEST_F(MemoryCopiesTest, AStartThatIsRefusedLosesNothing) {
  auto options = config("run", 1, 2);
  options.checkpoint.save_interval = 2;
  cut_off(options, 1, 5);
  auto wrong = options, without = options;
  wrong.model.hidden_size *= 2;
  EXPECT_THROW(run(wrong, 1), ConfigError);
  without.model.hidden_size *= 2;
  without.checkpoint.memory_interval = 0;
  EXPECT_THROW(run(without, 1), ConfigError);
  EXPECT_THAT(resume(options, 1), HasSubstr("in memory at iteration 5"));
}

TEST_F(MemoryCopiesTest, WhereTheyAreAllThereIsTheBatchStaysAndDamageSaysWhatToRemove) {
  const auto options = config("run", 1, 2);
  cut_off(options, 1, 3);
  EXPECT_EQ(resumed_batch(options).size, plan::resolve(options).config.train.global_batch_size);
  ASSERT_EQ(kept(0).size(), 1u);
  std::ofstream(kept(0)[0] / "iter_0000003" / "rank_00001.safetensors", std::ios::binary | std::ios::in)
      << std::string(64, 'x');
  try {
    run(options, 1);
    ADD_FAILURE() << "it was taken";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("start anew: rm -r " + kept(0)[0].string() + " on each node"));
  }
}

TEST_F(MemoryCopiesTest, ARollbackForgetsThem) {
  auto options = config("rolled", 1, 2);
  options.checkpoint.save_interval = 2;
  options.guard.on_nan = "rollback";
  options.guard.inject_faults = {"nan:4"};
  cut_off(options, 1, 4);  // the fifth step to begin is iteration 3 again
  ASSERT_EQ(kept(0).size(), 1u);
  EXPECT_THAT(checkpoint::iterations_in(kept(0)[0]), IsEmpty()) << "iteration 3 does not know that 4 is skipped";
  EXPECT_THAT(resume(options, 1), HasSubstr("iter_0000002 at iteration 2"));
}

TEST_F(MemoryCopiesTest, PlansAreWhatIsWritten) {
  for (const char* const dtype : {"fp64", "bf16", "fp8"}) {
    auto options = config(dtype, 2, 1);
    const bool eight_bits = std::string(dtype) == "fp8";
    options.train.dtype = eight_bits ? "bf16" : dtype;
    if (eight_bits) options.fp8.format = "hybrid";
    cut_off(options, 1, 2);
    ASSERT_EQ(kept(0).size(), 1u);
    std::uint64_t bytes = 0;
    for (const auto& [name, tensor] : checkpoint::read_manifest(kept(0)[0] / "iter_0000002").tensors) {
      std::uint64_t elements = 1;
      for (const std::int64_t size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
      bytes += elements * (tensor.dtype == "F64" ? 8 : tensor.dtype == "F32" ? 4 : 2);
    }
    EXPECT_EQ(bytes, static_cast<std::uint64_t>(plan::checkpoint_bytes(plan::resolve(options)))) << dtype;
    fs::remove_all(kept(0)[0]);
  }
}

TEST_F(MemoryCopiesTest, AFolderThatOthersMayEnterIsRefusedAndOneThatFailsEndsNothing) {
  const auto options = config("run", 1, 2);
  cut_off(options, 1, 1);
  ASSERT_EQ(kept(0).size(), 1u);
  const fs::path folder = kept(0)[0];
  fs::permissions(folder, fs::perms::group_read, fs::perm_options::add);
  try {
    run(options, 1);
    ADD_FAILURE() << "it was taken";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a folder that others may enter"));
  }
  fs::permissions(folder, fs::perms::group_read, fs::perm_options::remove);
  write_file(folder / ".tmp-iter_0000003", "where a folder is to be");
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(resume(options, 1), HasSubstr("in memory at iteration 1"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("WARNING: no more checkpoints are kept in memory (checkpoint.memory_interval): "));
  EXPECT_EQ(losses("run").size(), 6u);
}

}  // namespace
}  // namespace megatron::train
