#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/config/megatron_words.h"

// Megatron-LM's checkpoints that are not kept for good.
namespace megatron::config {
namespace {

using testing::HasSubstr;

constexpr const char* kSaving =
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 4 --train-iters 100 --lr 1e-4 --save a --save-interval 1000 ";

CheckpointConfig checkpoints_of(const std::string& words) { return translation_of_words(words).config.checkpoint; }

TEST(MegatronCheckpoints, KeepCheckpointsThatTheNextReplaces) {
  const std::string saved = kSaving, memory = saved + "--non-persistent-save-interval 10 --non-persistent-ckpt-type ";
  const CheckpointConfig local = checkpoints_of(memory + "local --non-persistent-local-ckpt-dir /ssd --replication");
  EXPECT_EQ(local.memory_interval, 10);
  EXPECT_EQ(local.memory_folder, "/ssd");
  EXPECT_TRUE(local.memory_neighbours);
  const CheckpointConfig in_memory = checkpoints_of(memory + "in_memory");
  EXPECT_EQ(in_memory.memory_folder, "/dev/shm");
  EXPECT_FALSE(in_memory.memory_neighbours);
  EXPECT_EQ(checkpoints_of(memory + "global --non-persistent-global-ckpt-dir /nfs").memory_folder, "/nfs");
  EXPECT_THAT(refusal_of_words(memory + "global"), HasSubstr("--non-persistent-global-ckpt-dir FOLDER"));
  EXPECT_THAT(refusal_of_words(saved + "--non-persistent-save-interval 0"), HasSubstr("must be above 0"));
  const std::string unsaved = saved.substr(0, saved.find("--save a"));
  EXPECT_EQ(checkpoints_of(unsaved + "--non-persistent-save-interval 10").memory_interval, 0) << "without --save";
  const auto alone = translation_of_words(saved + "--non-persistent-local-ckpt-dir /ssd --replication");
  EXPECT_EQ(alone.config.checkpoint.memory_interval, 0);
  EXPECT_EQ(alone.ignored.size(), 2u);
}

TEST(MegatronCheckpoints, StartFromTheIterationThatIsNamed) {
  const std::string saved = kSaving;
  EXPECT_EQ(checkpoints_of(saved + "--load a --ckpt-step 40").ckpt_step, 40);
  EXPECT_EQ(checkpoints_of(saved + "--load a --ckpt-step 0").ckpt_step, 0) << "the last";
  EXPECT_EQ(checkpoints_of(saved + "--pretrained-checkpoint b --ckpt-step 40").ckpt_step, 40);
  EXPECT_EQ(checkpoints_of(saved + "--load a --override-ckpt-iteration 7").override_ckpt_iteration, 7);
  EXPECT_EQ(translation_of_words(saved + "--override-ckpt-iteration 7").ignored.back().text, "without --load");
  const auto alone = translation_of_words(saved + "--ckpt-step 40");
  EXPECT_EQ(alone.config.checkpoint.ckpt_step, 0);
  EXPECT_EQ(alone.ignored.back().text, "without --load");
  EXPECT_THAT(refusal_of_words(saved + "--load a --ckpt-step"), HasSubstr("--ckpt-step takes an integer"));
}

}  // namespace
}  // namespace megatron::config
