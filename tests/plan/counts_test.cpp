#include "megatron/plan/counts.h"

#include <gtest/gtest.h>

#include "megatron/plan/rules.h"

namespace megatron::plan {
namespace {

GptShape gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t padded_vocab = 51200) {
  return {.num_layers = layers,
          .hidden = hidden,
          .num_heads = heads,
          .ffn_hidden = 4 * hidden,
          .vocab = 50257,
          .padded_vocab = padded_vocab,
          .max_positions = 1024};
}

TEST(ParameterCount, GivesTheSizesOfThePapersTables) {
  // Layers, width, heads and billions as in tables 1 and 2 of Shoeybi et al. (2019).
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt(24, 1024, 16))) / 1e9, 0.355, 0.001);
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt(40, 1536, 16))) / 1e9, 1.2, 0.05);
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt(54, 1920, 20))) / 1e9, 2.5, 0.05);
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt(64, 2304, 24))) / 1e9, 4.2, 0.05);
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt(72, 3072, 32))) / 1e9, 8.3, 0.05);
}

TEST(ParameterCount, OfGpt2SmallIsItsPublishedSize) {
  EXPECT_EQ(parameter_count(gpt(12, 768, 12, 50257)), 124'439'808);
}

TEST(ParameterCount, CountsAnUntiedOutputLayer) {
  GptShape shape = gpt(12, 768, 12, 50257);
  const std::int64_t tied = parameter_count(shape);
  shape.tied_output = false;
  EXPECT_EQ(parameter_count(shape) - tied, 50257 * 768);
}

TEST(TrainingFlops, CountsEachMatrixProductOfAStep) {
  // GPT-2 small, one sequence of 1024: 84,934,656 weights in the blocks and 50304 x 768 in the output layer, each used
  // by 6 operations a token; attention scores and sums over 768 wide heads, half of the square.
  const double matrices = 6.0 * 1024 * (84'934'656.0 + 50304.0 * 768.0);
  const double attention = 12 * 3 * 2 * 2 * 1024.0 * 1024.0 * 768.0 / 2;
  EXPECT_DOUBLE_EQ(training_flops(gpt(12, 768, 12, 50304), 1, 1024), matrices + attention);
  EXPECT_DOUBLE_EQ(training_flops(gpt(12, 768, 12, 50304), 7, 1024), 7 * (matrices + attention));
}

TEST(MemoryPlan, SplitsStateOverTensorParallelRanks) {
  config::RunConfig config;
  config.model.vocab_size = 4096;
  config.parallel.tp = config.parallel.world_size = 1;
  const ResolvedRun whole = resolve(config);
  const MemoryPlan one = memory_plan(whole.config, whole.shape, 0);
  EXPECT_EQ(one.parameters, 4 * parameter_count(whole.shape));
  EXPECT_EQ(one.gradients, one.parameters);
  EXPECT_EQ(one.optimizer_state, 2 * one.parameters);
  EXPECT_EQ(one.logits, 4 * 128 * 4096);

  config.parallel.tp = config.parallel.world_size = 2;
  const ResolvedRun split = resolve(config);
  std::int64_t replicated = 0, sum = 0;
  for (const ParameterSpec& spec : gpt_parameters(split.shape, 2, 0))
    if (spec.replicated()) replicated += 4 * spec.size();
  for (int rank = 0; rank < 2; ++rank) sum += memory_plan(split.config, split.shape, rank).parameters;
  EXPECT_EQ(sum, one.parameters + replicated);
  EXPECT_LT(memory_plan(split.config, split.shape, 0).activations, one.activations);
  EXPECT_EQ(memory_plan(split.config, split.shape, 0).logits * 2, one.logits);
}

TEST(MemoryPlan, DoublesInDoublePrecision) {
  config::RunConfig config;
  config.model.vocab_size = 4096;
  const ResolvedRun single = resolve(config);
  config.train.dtype = "fp64";
  const ResolvedRun twice = resolve(config);
  EXPECT_EQ(memory_plan(twice.config, twice.shape, 0).total(), 2 * memory_plan(single.config, single.shape, 0).total());
}

}  // namespace
}  // namespace megatron::plan
