#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "megatron/comm/gloo_backend.h"
#include "megatron/comm/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/batch_plan.h"
#include "megatron/plan/rules.h"
#include "megatron/train/batches.h"
#include "megatron/train/engine.h"

// The same seed gives the same training whatever the layout of ranks: same weights, same samples, same dropout masks.
// What is left are sums in another order. bench/parity.sh shows it at full length on real text.
namespace megatron::train {
namespace {

struct Layout {
  int tp, dp;
  std::int64_t micro_batch;
  bool gloo = false;
};

std::string name_of(const Layout& layout) {
  return "tp" + std::to_string(layout.tp) + "_dp" + std::to_string(layout.dp) + "_mbs" +
         std::to_string(layout.micro_batch) + (layout.gloo ? "_gloo" : "");
}

plan::ResolvedRun run_of(const Layout& layout, const char* dtype) {
  config::RunConfig config;
  config.model.num_layers = 2;
  config.model.hidden_size = 32;
  config.model.num_attention_heads = 4;
  config.model.vocab_size = 61;  // no multiple of anything: some rows are padding
  config.model.make_vocab_size_divisible_by = 8;
  config.model.hidden_dropout = config.model.attention_dropout = 0.1;
  config.data.seq_length = 12;
  config.parallel.tp = layout.tp;
  config.parallel.world_size = layout.tp * layout.dp;
  config.optimizer.bucket_size = 3000;
  config.optimizer.clip_grad = 0.5;  // below the norms of this model: clipping is always on
  config.schedule.lr = 1e-3;
  config.train.micro_batch_size = layout.micro_batch;
  config.train.global_batch_size = 8;
  config.train.train_iters = 20;
  config.train.dtype = dtype;
  config.train.loss_chunk_tokens = 10;
  return plan::resolve(config);
}

// Losses of the run's steps, the same on every rank.
std::vector<double> losses_of(const Layout& layout, const char* dtype) {
  const plan::ResolvedRun run = run_of(layout, dtype);
  const auto& train = run.config.train;
  std::vector<double> losses;
  const auto rank = [&](const comm::Group& world) {
    kernels::configure_thread(1);  // the model is too small to share
    Engine engine(run, world, at::kCPU);
    for (std::int64_t i = 0; i < train.train_iters; ++i) {
      const std::int64_t first = i * train.global_batch_size;
      const auto samples = plan::batch_plan(first, train.global_batch_size, train.micro_batch_size, layout.dp,
                                            engine.context.index(plan::Axis::Dp))
                               .microbatches;
      const auto result = engine.step(
          static_cast<int>(samples.size()),
          [&](std::size_t m) {
            return synthetic_batch(samples[m], run.config.data.seq_length, run.shape.vocab, train.seed, at::kCPU);
          },
          run.learning_rate.at(first));
      EXPECT_FALSE(result.skipped);
      EXPECT_GT(result.grad_norm, run.config.optimizer.clip_grad) << "clipping was to be on";
      if (world.rank() == 0) losses.push_back(result.loss);
    }
  };
  if (layout.gloo)
    comm::run_gloo_ranks(layout.tp * layout.dp, rank, {});
  else
    comm::run_ranks(layout.tp * layout.dp, rank);
  return losses;
}

class Parity : public ::testing::TestWithParam<Layout> {
 protected:
  // Relative difference to one rank that computes the global batch at once, by step.
  static std::vector<double> differences(const char* dtype) {
    const std::vector<double> want = losses_of({.tp = 1, .dp = 1, .micro_batch = 8}, dtype),
                              got = losses_of(GetParam(), dtype);
    EXPECT_EQ(got.size(), want.size());
    std::vector<double> result;
    for (std::size_t i = 0; i < want.size(); ++i) result.push_back(std::abs(got.at(i) - want[i]) / want[i]);
    return result;
  }
};

TEST_P(Parity, LossesInDoublePrecisionAreThoseOfOneRankAtEveryStep) {
  const auto difference = differences("fp64");
  for (std::size_t i = 0; i < difference.size(); ++i) EXPECT_LE(difference[i], 1e-10) << "step " << i + 1;
}

TEST_P(Parity, LossesInSinglePrecisionDifferByRoundingAloneAfterTwentySteps) {
  EXPECT_LE(differences("fp32").back(), 1e-5);
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int tp : {1, 2, 4})
    for (const int dp : {1, 2, 4})
      for (const std::int64_t micro_batch : {1, 2}) all.push_back({tp, dp, micro_batch});
  all.push_back({1, 1, 4});
  all.push_back({2, 1, 8, true});
  all.push_back({1, 2, 4, true});
  all.push_back({2, 2, 1, true});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Layouts, Parity, ::testing::ValuesIn(layouts()),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace megatron::train
