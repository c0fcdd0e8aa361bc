#include "megatron/train/step.h"

#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

/// Of all parameters.
at::Tensor first_moment(const optim::Optimizer& optimizer) {
  std::vector<at::Tensor> slices;
  for (const auto& slice : optimizer.state())
    if (slice.kind == "exp_avg") slices.push_back(slice.flat);
  return at::cat(slices);
}

TEST(TrainStep, ANanOnOneRankSkipsTheStepOnAllAndChangesNothing) {
  const plan::ResolvedRun run = plan::resolve(testing::tiny_config(2, 2));
  comm::run_ranks(4, [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    const auto before = engine.parameters.values().clone();
    // One element of one rank's slice: its tensor-parallel peers see it through the sums, its data-parallel ones too.
    const auto bias = engine.parameters.get("decoder.layers.1.mlp.linear_fc1.bias")->value.detach();
    const auto kept = bias[0].clone();
    if (world.rank() == 3) bias[0] = std::numeric_limits<double>::quiet_NaN();
    const StepResult result = testing::take_step(run, engine, 0);
    EXPECT_TRUE(result.skipped) << "rank " << world.rank();
    EXPECT_EQ(engine.optimizer.steps(), 0);
    bias[0] = kept;
    EXPECT_TRUE(engine.parameters.values().equal(before)) << "rank " << world.rank();
    EXPECT_FALSE(testing::take_step(run, engine, 1).skipped) << "the step after does not recover";
    EXPECT_EQ(engine.optimizer.steps(), 1);
  });
}

TEST(TrainStep, EveryRankLearnsThatOneWasAskedToStop) {
  const plan::ResolvedRun run = plan::resolve(testing::tiny_config(2, 2));
  comm::run_ranks(4, [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    const auto batch = [&](std::size_t m) {
      const std::vector<std::int64_t> samples = {static_cast<std::int64_t>(m)};
      return synthetic_batch(samples, 10, 61, 1, at::kCPU);
    };
    EXPECT_FALSE(engine.step(1, batch, 0, false).stop);
    EXPECT_TRUE(engine.step(1, batch, 0, world.rank() == 2).stop) << "rank " << world.rank();
    EXPECT_TRUE(evaluate(engine.pipeline, engine.context, 1, batch, world.rank() == 1).stop) << "rank " << world.rank();
  });
}

TEST(TrainStep, ClippingScalesTheUpdateSoThatTheGradientHasTheLargestNormAllowed) {
  // Without clipping and with a gradient that clipping leaves alone, the weights after a step are the same.
  auto config = testing::tiny_config();
  const auto weights_after = [&](double clip_grad) {
    config.optimizer.clip_grad = clip_grad;
    config.optimizer.adam_eps = 1;  // so that the size of the gradient matters to the update
    const plan::ResolvedRun run = plan::resolve(config);
    Engine engine(run, {}, at::kCPU);
    const StepResult result = testing::take_step(run, engine, 0);
    return std::pair(first_moment(engine.optimizer), result.grad_norm);
  };
  const auto [free, norm] = weights_after(0);
  const auto [loose, same_norm] = weights_after(2 * norm);
  const auto [tight, measured] = weights_after(norm / 4);
  EXPECT_EQ(measured, norm) << "the norm reported is the one before clipping";
  EXPECT_TRUE(free.equal(loose));
  EXPECT_NEAR(tight.norm().item<double>(), free.norm().item<double>() / 4, 1e-6 * norm);
}

TEST(Evaluation, IsTheMeanOverTokensWithoutDropoutInEveryLayout) {
  auto config = testing::tiny_config();
  config.model.hidden_dropout = config.model.attention_dropout = 0;
  const plan::ResolvedRun alone = plan::resolve(config);
  Engine reference(alone, {}, at::kCPU);
  // Without dropout the loss of a training step before its update is the same number.
  const double want = testing::take_step(alone, reference, 0).loss;
  struct Layout {
    int tp, dp, pp;
    const char* schedule;
    bool sp;
  };
  for (const auto& [tp, dp, pp, schedule, sp] : {Layout{1, 1, 1, "", false},
                                                 {2, 1, 1, "", false},
                                                 {1, 2, 1, "", false},
                                                 {2, 2, 1, "", true},
                                                 {1, 1, 2, "zb-h1", false},
                                                 {1, 2, 2, "", false},
                                                 {2, 1, 2, "gpipe", true}}) {
    auto spread = testing::tiny_config(tp, dp);  // with dropout, were it training
    spread.parallel.pp = pp;
    spread.parallel.sp = sp;
    spread.parallel.pp_schedule = schedule;
    spread.parallel.world_size = tp * dp * pp;
    const plan::ResolvedRun run = plan::resolve(spread);
    comm::run_ranks(tp * dp * pp, [&, ranks = dp](const comm::Group& world) {
      kernels::configure_thread(1);
      Engine engine(run, world, at::kCPU);
      const auto samples = plan::batch_plan(0, 4, 1, ranks, engine.context.samples().rank()).microbatches;
      const Evaluation evaluation = evaluate(engine.pipeline, engine.context, samples.size(), [&](std::size_t m) {
        return synthetic_batch(samples[m], run.config.data.seq_length, run.shape.vocab, run.config.train.seed,
                               at::kCPU);
      });
      EXPECT_NEAR(evaluation.loss, want, 1e-12);
      EXPECT_EQ(evaluation.tokens, 40);
      EXPECT_DOUBLE_EQ(evaluation.perplexity(), std::exp(evaluation.loss));
    });
  }
}

TEST(Evaluation, BoundsPerplexityAsMegatronDoes) {
  EXPECT_DOUBLE_EQ((Evaluation{.loss = 50}.perplexity()), std::exp(20.0));
}

}  // namespace
}  // namespace megatron::train
