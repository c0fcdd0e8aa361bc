#include <gtest/gtest.h>

#include <vector>

#include "megatron/comm/local_backend.h"
#include "megatron/kernels/cpu/tiles.h"
#include "megatron/kernels/runtime.h"
#include "tests/train/tiny_run.h"

// Training whose matrix products run on the matrix unit of AMX, emulated: in particular, weights that are packed for it
// must be packed again after every update.
namespace megatron::train {
namespace {

class TileUnit : public ::testing::Test {
 protected:
  void TearDown() override {
    kernels::cpu::emulate_tiles(false);
    kernels::set_matmul_precision("highest");
  }
};

std::vector<double> losses(const char* dtype, bool sharded) {
  auto config = testing::tiny_config(1, sharded ? 2 : 1, dtype);
  config.optimizer.use_distributed_optimizer = sharded;
  config.optimizer.bucket_size = 2000;
  const plan::ResolvedRun run = plan::resolve(config);
  std::vector<double> of_first_rank;
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    for (std::int64_t i = 0; i < run.config.train.train_iters; ++i) {
      const double loss = testing::take_step(run, engine, i).loss;
      if (world.rank() == 0) of_first_rank.push_back(loss);
    }
  });
  return of_first_rank;
}

TEST_F(TileUnit, LossesOfBf16AreThoseWithoutItWithinTwoThousandths) {
  for (const bool sharded : {false, true}) {
    const auto want = losses("bf16", sharded);
    kernels::cpu::emulate_tiles(true);
    const auto got = losses("bf16", sharded);
    kernels::cpu::emulate_tiles(false);
    EXPECT_LT(want.back(), 0.99 * want.front()) << "nothing was learnt, so stale weights would not show";
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 2e-3 * want[i]) << "step " << i + 1 << (sharded ? ", sharded optimizer" : "");
  }
}

TEST_F(TileUnit, LossesOfFloat32WithPrecisionHighAreThoseWithoutItWithinOneInAHundredThousand) {
  const auto want = losses("fp32", false);
  kernels::cpu::emulate_tiles(true);
  kernels::set_matmul_precision("high");
  const auto got = losses("fp32", false);
  EXPECT_NE(got, want) << "the same products were computed";
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * want[i]) << "step " << i + 1;
}

}  // namespace
}  // namespace megatron::train
