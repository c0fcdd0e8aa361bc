#include <gtest/gtest.h>

#include "megatron/base/files/file.h"
#include "megatron/plan/cost/fit/teacher.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/train/tuning/distillation.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

// A Llama of 3 layers, of width 16 and 64 words, without biases, its matrices one after the other.
constexpr std::int64_t kLayer = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 2 * 16, kWords = 64 * 16;

std::int64_t memory_with(const TemporaryFolder& folder, int tp, int pp, int world) {
  config::RunConfig config = testing::tiny_config(tp, 1, "fp32");
  config.model.vocab_size = 64;
  config.model.num_layers = 4;
  config.parallel.pp = pp;
  config.parallel.world_size = world;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 8;
  config.distill.teacher = folder.path().string();
  const plan::ResolvedRun run = plan::resolve(config, {.teacher = teacher_of(config)});
  std::int64_t bytes = 0;
  for (int pp_rank = 0; pp_rank < pp; ++pp_rank)
    bytes += plan::teacher_bytes(run, pp_rank) * (run.grid.world_size() / pp);
  return bytes;
}

TEST(TeacherMemory, IsThatOfItsWeightsOnceForEachCopyAndOfWhatItsLastStageReads) {
  const TemporaryFolder folder;
  write_file(folder.path() / "config.json",
             R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "vocab_size": 64,
                 "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0,
                 "tie_word_embeddings": false})");
  constexpr std::int64_t kWhole = 3 * kLayer + 16 + 2 * kWords;
  EXPECT_EQ(memory_with(folder, 1, 1, 1), 4 * kWhole);
  EXPECT_EQ(memory_with(folder, 1, 1, 4), 4 * 4 * kWhole);
  const std::int64_t norms = 7 * 16;
  EXPECT_EQ(memory_with(folder, 2, 1, 2), 4 * (kWhole + norms));
  const config::RunConfig tiny = testing::tiny_config(1, 1, "fp32");
  EXPECT_EQ(memory_with(folder, 1, 2, 2), 4 * (kWhole + 8 * tiny.data.seq_length * 16));
  EXPECT_FALSE(teacher_of(tiny).has_value());
}

}  // namespace
}  // namespace megatron::train
