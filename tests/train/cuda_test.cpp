#include <gtest/gtest.h>

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

}  // namespace
}  // namespace megatron::train
