#include <gmock/gmock.h>

#include <exception>
#include <fstream>
#include <mutex>

#include "megatron/base/machine/out_of_memory.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/train/tuning/distillation.h"
#include "tests/train/trainer_fixture.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

/// Changes a byte in the middle of the last tensor of the file.
void damage(const fs::path& file) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(-9, std::ios::end);
  const int before = bytes.get();
  bytes.seekp(-9, std::ios::end);
  bytes.put(static_cast<char>(before ^ 0x40));
}

class TeacherFailure : public TrainerTest {};

TEST_F(TeacherFailure, OfOneRankIsSaidByAll) {
  config::RunConfig config = TeacherFailure::config("teacher");
  config.parallel.pp = config.parallel.world_size = 2;
  config.train.train_iters = 1;
  run(config);
  const fs::path teacher = checkpoint::find_checkpoint(folder_ / "teacher/checkpoints");
  config.train.out = (folder_ / "student").string();
  config.distill.teacher = teacher.string();
  const plan::ResolvedRun student = plan::resolve(config, {.teacher = teacher_of(config)});
  std::mutex mutex;
  std::vector<std::string> errors;
  comm::run_ranks(2, [&](const comm::Group& world) {
    kernels::configure_thread(1);
    try {
      train(
          student, /*eod=*/0, world, at::kCPU, [] { return false; },
          [&] {
            if (world.rank() == 0) damage(teacher / "rank_00001.safetensors");  // of the second stage alone
            world.barrier();
          });
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      errors.push_back(message_of(error));
    }
  });
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_THAT(errors[0], ::testing::StartsWith("rank 1: "));
  EXPECT_THAT(errors[0], ::testing::HasSubstr("rank_00001.safetensors"));
}

}  // namespace
}  // namespace megatron::train
