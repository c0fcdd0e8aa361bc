#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/cpu/products/tiles.h"
#include "megatron/kernels/runtime.h"
#include "megatron/kernels/tile_matmul.h"
#include "megatron/plan/cost/memory.h"
#include "tests/pipeline/live_bytes.h"
#include "tests/train/pattern.h"
#include "tests/train/tiny_run.h"

// Training whose matrix products run on the matrix unit of AMX, emulated, and on what this machine has itself: in
// particular, weights that are packed for it must be packed again after every update.
namespace megatron::train {
namespace {

class TileUnit : public ::testing::Test {
 protected:
  void TearDown() override {
    kernels::cpu::emulate_tiles(false);
    kernels::force_instruction_set("auto");
    kernels::set_matmul_precision("highest");
  }
};

/// The units of bf16 products that this machine has.
std::vector<std::string> own_units() {
  std::vector<std::string> names = kernels::instruction_sets();
  std::erase_if(names, [](const std::string& name) { return name != "amx" && name != "avx512_bf16"; });
  return names;
}
/// The best instruction set without one.
void force_no_unit() {
  for (const std::string& name : kernels::instruction_sets())
    if (name != "amx" && name != "avx512_bf16") return kernels::force_instruction_set(name);
}

std::vector<double> losses(const char* dtype, bool sharded) {
  auto config = testing::tiny_config(1, sharded ? 2 : 1, dtype);
  config.optimizer.use_distributed_optimizer = sharded;
  config.optimizer.bucket_size = 2000;
  config.optimizer.name = "sgd";
  config.schedule.lr = 0.3;
  config.model.hidden_dropout = config.model.attention_dropout = 0;
  config.train.global_batch_size = 8;
  config.train.train_iters = 20;
  const plan::ResolvedRun run = plan::resolve(config);
  std::vector<double> of_first_rank;
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    for (std::int64_t i = 0; i < run.config.train.train_iters; ++i) {
      const double loss = testing::pattern_step(run, engine, i).loss;
      if (world.rank() == 0) of_first_rank.push_back(loss);
    }
  });
  return of_first_rank;
}

/// What was learnt, in nats: more than half of what the tokens before tell of the next. Weights that were packed for
/// the unit before an update and not after it would show.
double learnt(const std::vector<double>& course) {
  EXPECT_LT(course.back(), 0.5 * testing::kPatternChance) << "nothing was learnt but which tokens there are";
  return course.front() - course.back();
}

TEST_F(TileUnit, Bf16LearnsAsWithoutItWithinAHundredth) {
  for (const bool sharded : {false, true}) {
    force_no_unit();
    const auto want = losses("bf16", sharded);
    const double tolerance = 0.01 * learnt(want);
    const auto expect_near = [&](const std::string& unit) {
      const auto got = losses("bf16", sharded);
      EXPECT_NE(got, want) << "the same products were computed";
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], tolerance) << unit << ", step " << i + 1 << (sharded ? ", sharded optimizer" : "");
    };
    kernels::cpu::emulate_tiles(true);
    expect_near("emulated tiles");
    kernels::cpu::emulate_tiles(false);
    for (const std::string& unit : own_units()) {
      kernels::force_instruction_set(unit);
      expect_near(unit);
    }
  }
}

// Each of its products leaves out 2^-17 of a number: 256 times less than bf16's do, and so the course may differ by.
TEST_F(TileUnit, Float32WithPrecisionHighLearnsAsWithoutItWithinOneInTwentyThousand) {
  const auto want = losses("fp32", false);
  const double tolerance = 0.01 / 256 * learnt(want);
  kernels::cpu::emulate_tiles(true);
  kernels::set_matmul_precision("high");
  const auto got = losses("fp32", false);
  EXPECT_NE(got, want) << "the same products were computed";
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << "step " << i + 1;
}

static_assert(plan::kTokensPackedWhileRead == kernels::kRowsPackedWhileRead);

TEST_F(TileUnit, ProductsOfFloat32PackWhatPlansCount) {
  constexpr std::int64_t kDepth = 1024, kMost = plan::kMostPackedOperandBytes / 6 / kDepth;
  EXPECT_TRUE(kernels::fits_packed(at::kFloat, kMost, kDepth));
  EXPECT_FALSE(kernels::fits_packed(at::kFloat, kMost + 32, kDepth));
}

TEST_F(TileUnit, PackedWeightsTakeTheBytesThatThePlanSays) {
  kernels::cpu::emulate_tiles(true);
  for (const char* dtype : {"bf16", "fp32"})
    for (const int pp : {1, 2}) {
      auto config = testing::tiny_pipeline_config(/*tp=*/2, /*dp=*/1, pp, /*vpp=*/1, /*sp=*/false, "", dtype);
      if (dtype == std::string("fp32")) config.train.matmul_precision = "high";
      config.data.seq_length = 32;  // few tokens are multiplied without packing
      kernels::set_matmul_precision(config.train.matmul_precision);
      const plan::ResolvedRun run = plan::resolve(config);
      comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
        kernels::configure_thread(1);
        const auto counter = std::make_shared<pipeline::testing::AllocationCounter>();
        const pipeline::testing::CountAllocations counting(counter);
        Engine engine(run, world, at::kCPU);
        const std::int64_t before = counter->bytes();
        testing::take_step(run, engine, 0);
        const auto planned =
            plan::memory_plan(run, engine.context.tensor().rank(), engine.context.pipeline().rank(), 0, "amx");
        EXPECT_GT(planned.packed_weights, planned.parameters);
        EXPECT_NEAR(static_cast<double>(counter->bytes() - before), static_cast<double>(planned.packed_weights),
                    0.02 * static_cast<double>(planned.packed_weights))
            << dtype << " pp " << pp << " rank " << world.rank();
      });
    }
}

}  // namespace
}  // namespace megatron::train
