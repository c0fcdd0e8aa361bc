#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/memory.h"
#include "tests/pipeline/live_bytes.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

struct Held {
  std::int64_t bytes = 0, planned = 0;
};

Held held_by_run(bool norm_bias, int lora_rank) {
  config::RunConfig config = testing::tiny_config(1, 1, "fp32");
  config.model.norm_bias = norm_bias;
  config.model.qk_layernorm = true;  // of a head's size
  config.lora.rank = lora_rank;
  const plan::ResolvedRun run = plan::resolve(config);
  kernels::configure_thread(1);
  const auto counter = std::make_shared<pipeline::testing::AllocationCounter>();
  const pipeline::testing::CountAllocations counting(counter);
  const Engine engine(run, {}, at::kCPU);
  const plan::MemoryPlan memory = plan::memory_plan(run, 0, 0, 0);
  return {counter->bytes(), memory.parameters + memory.gradients + memory.optimizer_state};
}

// LayerNorms without biases hold zeros for them, which no optimizer updates.
TEST(NormZeros, AreHeldAsPlanned) {
  for (const int lora_rank : {0, 2}) {
    const Held with = held_by_run(true, lora_rank), without = held_by_run(false, lora_rank);
    EXPECT_EQ(without.bytes - with.bytes, without.planned - with.planned) << lora_rank;
    if (lora_rank == 0) {
      EXPECT_LT(without.planned, with.planned) << "gradients and moments are gone";
    }
  }
  config::RunConfig config = testing::tiny_config(1, 1, "fp32");
  config.model.norm_bias = false;
  const plan::ModelShape shape = plan::resolve(config).shape;
  EXPECT_EQ(plan::constants_of_norms(shape, plan::model_parameters(shape, 1, 0)), (2 * 2 + 1) * 24);
}

// Norms of queries and keys without weights hold ones for them.
TEST(NormOnes, AreHeldAsPlanned) {
  const auto held_by = [](bool normed) {
    config::RunConfig config = testing::tiny_config(1, 1, "fp32");
    config.model.qk_l2_norm = normed;
    const plan::ResolvedRun run = plan::resolve(config);
    kernels::configure_thread(1);
    const auto counter = std::make_shared<pipeline::testing::AllocationCounter>();
    const pipeline::testing::CountAllocations counting(counter);
    const Engine engine(run, {}, at::kCPU);
    return std::pair(counter->bytes(), plan::memory_plan(run, 0, 0, 0).parameters);
  };
  const auto with = held_by(true), without = held_by(false);
  EXPECT_EQ(with.first - without.first, with.second - without.second);
  EXPECT_GT(with.second, without.second);
}

}  // namespace
}  // namespace megatron::train
