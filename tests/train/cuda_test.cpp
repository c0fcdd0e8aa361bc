#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/parallel/cuda.h"
#include "megatron/plan/parameters/fp8.h"
#include "tests/testing/cuda.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

TEST(TrainStep, OnCudaTakesTheStepsThatTheCpuTakes) {
  NEEDS_A_GPU();
  const auto losses_on = [](at::Device device) {
    const plan::ResolvedRun run = plan::resolve(testing::tiny_config(1, 1, "fp32"));
    Engine engine(run, {}, device);
    std::vector<double> losses;
    for (std::int64_t i = 0; i < 6; ++i) losses.push_back(testing::take_step(run, engine, i).loss);
    return losses;
  };
  const auto cpu = losses_on(at::kCPU), cuda = losses_on(at::kCUDA);
  for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(cuda[i], cpu[i], 1e-4 * cpu[i]) << "step " << i;
}

TEST(TrainStep, OnCudaPassesThatBeginBeforeTheHostKnowsOfTheStepBeforeAreTheSame) {
  NEEDS_A_GPU();
  const plan::ResolvedRun run = plan::resolve(testing::tiny_config(1, 1, "fp32"));
  Engine alone(run, {}, at::kCUDA), ahead(run, {}, at::kCUDA);
  std::vector<double> want, got;
  std::optional<TrainStep::Open> open;
  for (std::int64_t i = 0; i < 6; ++i) {
    want.push_back(testing::take_step(run, alone, i).loss);
    TrainStep::Open now = begin_synthetic_step(ahead, run, i);
    if (open) got.push_back(ahead.step.end(*std::exchange(open, std::nullopt)).loss);
    ahead.step.update(now, run.learning_rate.at(i * run.config.train.global_batch_size));
    open.emplace(std::move(now));
  }
  got.push_back(ahead.step.end(*std::exchange(open, std::nullopt)).loss);
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * want[i]) << "step " << i;
}

// By the GPU's 8-bit matrix units, which want multiples of 16, against their emulation. They add up in fewer digits.
TEST(TrainStep, InFp8OnCudaTakesNearlyTheStepsThatTheCpuTakes) {
  NEEDS_A_GPU();
  const auto has_units = [](const plan::Fp8Recipe& recipe) {
    try {
      parallel::require_fp8_units(recipe, 0);
    } catch (const ConfigError&) {
      return false;
    }
    return true;
  };
  if (!has_units({})) GTEST_SKIP() << "no NVIDIA GPU that multiplies 8-bit numbers";
  for (const auto& [format, recipe] : {std::pair{"hybrid", "delayed"},
                                       {"e4m3", "delayed"},
                                       {"hybrid", "tensorwise"},
                                       {"e4m3", "tensorwise"},
                                       {"e4m3", "blockwise"},
                                       {"e4m3", "mxfp8"}}) {
    config::RunConfig config = testing::tiny_config(1, 1, "fp32");
    config.fp8.format = format;
    config.fp8.recipe = recipe;
    const plan::Fp8Recipe asked = plan::fp8_recipe(config.fp8).value();
    if (!has_units(asked)) continue;
    const bool in_blocks = asked.in_blocks();
    config.model.hidden_size = in_blocks ? 128 : 32;
    config.model.num_attention_heads = 4;
    config.data.seq_length = in_blocks ? 128 : 16;
    const plan::ResolvedRun run = plan::resolve(config);
    const auto losses_on = [&](at::Device device) {
      Engine engine(run, {}, device);
      std::vector<double> losses;
      for (std::int64_t i = 0; i < 6; ++i) losses.push_back(testing::take_step(run, engine, i).loss);
      return losses;
    };
    const auto cpu = losses_on(at::kCPU), cuda = losses_on(at::kCUDA);
    for (std::size_t i = 0; i < cpu.size(); ++i)
      EXPECT_NEAR(cuda[i], cpu[i], 1e-2 * cpu[i]) << format << ' ' << recipe << " step " << i;
  }
}

}  // namespace
}  // namespace megatron::train
