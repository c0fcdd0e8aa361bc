#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "megatron/base/error.h"
#include "megatron/checkpoint/difference.h"
#include "megatron/comm/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/train/run_state.h"
#include "tests/train/save_run.h"
#include "tests/train/tiny_run.h"

// A run saved in one random layout, precision and division of the optimizer goes on in another.
namespace megatron::train {
namespace {

namespace fs = std::filesystem;

struct Way {
  int tp, pp, dp;
  const char* schedule;  // with pp 2; "zb-v" has two stages a rank
  bool sp, sharded, pooled;
  const char* dtype;

  std::string text() const {
    return concat("tp ", tp, " pp ", pp, " dp ", dp, " ", schedule, sp ? " sp" : "",
                  pooled    ? " gradients sharded "
                  : sharded ? " sharded "
                            : " ",
                  dtype);
  }
};

Way draw(std::mt19937& random, const char* dtype) {
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  Way way{};
  way.tp = 1 + below(3);
  way.pp = way.tp < 3 ? 1 + below(2) : 1;
  way.dp = way.tp * way.pp < 3 ? 1 + below(3) : 1 + below(2);
  constexpr const char* kSchedules[] = {"1f1b", "zb-h1", "zb-v", "interleaved"};
  way.schedule = way.pp > 1 ? kSchedules[below(4)] : "";
  way.sp = way.tp == 2 && below(2) == 1;  // ten positions divide by two
  way.sharded = below(2) == 1;
  way.pooled = way.sharded && below(2) == 1;
  way.dtype = dtype;
  return way;
}

config::RunConfig config_of(const Way& way, const char* optimizer) {
  auto config = testing::tiny_config(way.tp, way.dp, way.dtype);
  config.model.num_layers = 4;
  config.parallel.pp = way.pp;
  config.parallel.pp_schedule = way.schedule;
  config.parallel.vpp = std::string(way.schedule) == "zb-v" || std::string(way.schedule) == "interleaved" ? 2 : 1;
  config.parallel.sp = way.sp;
  config.parallel.world_size = way.tp * way.pp * way.dp;
  config.train.global_batch_size = 12;
  config.optimizer.name = optimizer;
  config.optimizer.bucket_size = 3000;
  config.optimizer.use_distributed_optimizer = way.sharded;
  if (way.pooled) config.optimizer.data_parallel_sharding_strategy = "optim_grads";
  return config;
}

/// Loads where `from` is given, takes steps [first, last), saves where `to` is given; the losses.
std::vector<double> train(const config::RunConfig& config, int first, int last, const fs::path& from,
                          const fs::path& to) {
  const plan::ResolvedRun run = plan::resolve(config);
  std::vector<double> losses;
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    if (!from.empty()) {
      EXPECT_EQ(load_run(from, engine).iteration, first);
    }
    for (int i = first; i < last; ++i) {
      const double loss = testing::take_step(run, engine, i).loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
    const RunState state{.iteration = last, .consumed_samples = 12 * last, .schedule_samples = 12 * last};
    if (!to.empty()) testing::save_run(to, state, engine, "", 0);
  });
  return losses;
}

double tolerance(const Way& a, const Way& b) {
  const auto digits = [](const std::string& dtype) { return dtype == "fp64" ? 1e-11 : dtype == "fp32" ? 3e-5 : 3e-2; };
  return std::max(digits(a.dtype), digits(b.dtype));
}

class CheckpointPairs : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  const fs::path folder_ = fs::path(::testing::TempDir()) / concat("checkpoint_pairs_", GetParam());
};

TEST_P(CheckpointPairs, GoOnWithEqualTensorsAndLosses) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  constexpr std::pair<const char*, const char*> kDtypes[] = {{"fp64", "fp64"}, {"fp32", "fp32"}, {"fp32", "bf16"},
                                                             {"bf16", "fp32"}, {"bf16", "bf16"}, {"fp32", "fp64"}};
  constexpr const char* kOptimizers[] = {"adam", "adam", "sgd", "lion"};
  const auto& [from_dtype, to_dtype] = kDtypes[static_cast<std::size_t>(GetParam()) % std::size(kDtypes)];
  const char* const optimizer = kOptimizers[random() % std::size(kOptimizers)];
  const Way from = draw(random, from_dtype), to = draw(random, to_dtype);
  SCOPED_TRACE(concat(optimizer, ": ", from.text(), " -> ", to.text()));

  const auto straight = train(config_of(from, optimizer), 0, 4, {}, {});
  const auto before = train(config_of(from, optimizer), 0, 2, {}, folder_ / "a");
  EXPECT_EQ(before, (std::vector<double>{straight[0], straight[1]}));

  train(config_of(to, optimizer), 2, 2, folder_ / "a", folder_ / "b");  // what was loaded, saved again
  for (const auto& difference : checkpoint::differences(folder_ / "a", folder_ / "b", 0))
    ADD_FAILURE() << difference.name << ": " << difference.what << " " << difference.largest;

  const auto same = train(config_of(from, optimizer), 2, 4, folder_ / "a", {});
  EXPECT_EQ(same, (std::vector<double>{straight[2], straight[3]})) << "the same layout goes on bit for bit";
  const auto other = train(config_of(to, optimizer), 2, 4, folder_ / "a", {});
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_NEAR(other[i] / straight[i + 2], 1, tolerance(from, to)) << "step " << i + 3;
}

/// A few pairs, or MEGATRON_CHECKPOINT_PAIRS.
int pairs() {
  const char* const named = std::getenv("MEGATRON_CHECKPOINT_PAIRS");
  return named != nullptr ? std::atoi(named) : 24;
}

INSTANTIATE_TEST_SUITE_P(Random, CheckpointPairs, ::testing::Range(1, 1 + pairs()));

}  // namespace
}  // namespace megatron::train
