#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/memory.h"
#include "megatron/plan/rank_buffers.h"
#include "tests/pipeline/live_bytes.h"
#include "tests/train/tiny_run.h"

// The distributed optimizer against the plain one in the same layout: the gradients are summed in the same order, so
// that the same bits come out. (With clipping the norm is summed in another order: its last bit may differ.)
namespace megatron::train {
namespace {

struct Layout {
  int tp = 1, dp = 1, pp = 1, vpp = 1;
  bool sp = false;
  const char* schedule = "";
  const char* dtype = "fp32";
};

std::string name_of(const ::testing::TestParamInfo<Layout>& test) {
  const Layout& l = test.param;
  std::string name = "tp" + std::to_string(l.tp) + (l.sp ? "_sp" : "") + "_dp" + std::to_string(l.dp) + "_pp" +
                     std::to_string(l.pp) + "_vpp" + std::to_string(l.vpp) + "_" + l.dtype;
  if (*l.schedule != 0) name += std::string("_") + l.schedule;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

config::RunConfig config_of(const Layout& layout, bool sharded) {
  auto config = testing::tiny_pipeline_config(layout.tp, layout.dp, layout.pp, layout.vpp, layout.sp, layout.schedule,
                                              layout.dtype);
  config.train.global_batch_size = 2 * layout.dp;
  config.optimizer.use_distributed_optimizer = sharded;
  return config;
}

/// What a training leaves: the losses, an evaluation and, by world rank, the parameters by name.
struct Course {
  std::vector<double> losses, norms;
  double evaluation = 0;
  std::vector<std::vector<at::Tensor>> parameters;
};

Course train(const config::RunConfig& config) {
  const plan::ResolvedRun run = plan::resolve(config);
  Course course;
  course.parameters.resize(static_cast<std::size_t>(run.grid.world_size()));
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    StepResult last;
    for (std::int64_t i = 0; i < 5; ++i) {
      last = testing::take_step(run, engine, i);
      EXPECT_FALSE(last.skipped);
      if (world.rank() != 0) continue;
      course.losses.push_back(last.loss);
      course.norms.push_back(last.grad_norm);
    }
    // At once, while the parameters are on their way.
    const auto samples = plan::batch_plan(0, run.config.train.global_batch_size, 1, run.grid.size(plan::Axis::Dp),
                                          engine.context.index(plan::Axis::Dp))
                             .microbatches;
    const auto evaluation = evaluate(engine.pipeline, engine.context, samples.size(), [&](std::size_t m) {
      return synthetic_batch(samples[m], run.config.data.seq_length, run.shape.vocab, 99, at::kCPU);
    });
    if (world.rank() == 0) course.evaluation = evaluation.loss;
    (void)engine.parameters.values();
    for (const auto& parameter : engine.parameters.all())
      course.parameters[static_cast<std::size_t>(world.rank())].push_back(parameter->value.detach().clone());
  });
  return course;
}

void expect_equal(const Course& got, const Course& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.evaluation, want.evaluation);
  for (std::size_t rank = 0; rank < want.parameters.size(); ++rank)
    for (std::size_t i = 0; i < want.parameters[rank].size(); ++i)
      EXPECT_TRUE(got.parameters[rank][i].equal(want.parameters[rank][i])) << "rank " << rank << ", parameter " << i;
}

class DistributedOptimizer : public ::testing::TestWithParam<Layout> {};

TEST_P(DistributedOptimizer, TrainsToTheSameBitsAsThePlainOne) {
  auto plain = config_of(GetParam(), false), sharded = config_of(GetParam(), true);
  plain.optimizer.clip_grad = sharded.optimizer.clip_grad = 0;
  const Course want = train(plain);
  expect_equal(train(sharded), want);
  sharded.optimizer.overlap_param_gather = sharded.optimizer.overlap_grad_reduce = false;
  plain.optimizer.overlap_grad_reduce = false;
  expect_equal(train(sharded), train(plain));
}

TEST_P(DistributedOptimizer, ClipsTheNormOfTheWholeModelCountedOnce) {
  for (const char* kind : {"l2", "inf"}) {
    auto plain = config_of(GetParam(), false), sharded = config_of(GetParam(), true);
    plain.optimizer.clip_grad = sharded.optimizer.clip_grad = 0.05;
    plain.optimizer.clip_norm = sharded.optimizer.clip_norm = kind;
    const Course want = train(plain), got = train(sharded);
    for (std::size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_GT(want.norms[i], 0.05) << "clipping was to be on";
      EXPECT_NEAR(got.norms[i], want.norms[i], 1e-6 * want.norms[i]);
      EXPECT_NEAR(got.losses[i], want.losses[i], 1e-6 * want.losses[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, DistributedOptimizer,
                         ::testing::Values(Layout{}, Layout{.dp = 2}, Layout{.dp = 3}, Layout{.dp = 4},
                                           Layout{.dp = 2, .dtype = "bf16"}, Layout{.tp = 2, .dp = 2},
                                           Layout{.tp = 2, .dp = 2, .sp = true}, Layout{.tp = 2, .dp = 3, .sp = true},
                                           Layout{.dp = 2, .pp = 2}, Layout{.dp = 3, .pp = 2, .schedule = "zb-h1"},
                                           Layout{.dp = 2, .pp = 2, .vpp = 2},
                                           Layout{.dp = 2, .pp = 2, .vpp = 2, .schedule = "zb-v", .dtype = "bf16"},
                                           Layout{.tp = 2, .dp = 2, .pp = 2, .sp = true}),
                         name_of);

/// With ZeRO stage 2: `microbatches` a step on each data-parallel rank.
std::pair<config::RunConfig, config::RunConfig> both_stages(const Layout& layout, std::int64_t microbatches) {
  auto first = config_of(layout, true);
  first.train.global_batch_size = microbatches * layout.dp;
  auto second = first;
  second.optimizer.data_parallel_sharding_strategy = "optim_grads";
  return {first, second};
}

class ShardedGradients : public ::testing::TestWithParam<Layout> {};

TEST_P(ShardedGradients, OfOneMicrobatchTrainToTheSameBitsAsWholeOnes) {
  auto [first, second] = both_stages(GetParam(), 1);
  first.optimizer.clip_grad = second.optimizer.clip_grad = 0.05;
  expect_equal(train(second), train(first));
  second.optimizer.overlap_grad_reduce = false;
  expect_equal(train(second), train(first));
}

// The sum over microbatches is then taken after that over ranks, not before it.
TEST_P(ShardedGradients, OfSeveralMicrobatchesTrainToTheSameLossesWithinAMillionth) {
  auto [first, second] = both_stages(GetParam(), 4);
  const Course want = train(first), got = train(second);
  const double tolerance = GetParam().dtype == std::string("fp32") ? 1e-6 : 2e-3;
  for (std::size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(got.norms[i], want.norms[i], 5 * tolerance * want.norms[i]) << "step " << i + 1;
  }
  if (GetParam().dp == 1) expect_equal(got, want);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ShardedGradients,
                         ::testing::Values(Layout{}, Layout{.dp = 2}, Layout{.dp = 3}, Layout{.dp = 4},
                                           Layout{.dp = 2, .dtype = "bf16"}, Layout{.tp = 2, .dp = 2, .sp = true},
                                           Layout{.dp = 2, .pp = 2}, Layout{.dp = 2, .pp = 2, .schedule = "gpipe"},
                                           Layout{.dp = 3, .pp = 2, .schedule = "zb-h1"},
                                           Layout{.dp = 2, .pp = 2, .vpp = 2, .schedule = "zb-v"},
                                           Layout{.tp = 2, .dp = 2, .pp = 2, .sp = true}),
                         name_of);

void expect_as_whole(const Layout& layout, const std::function<void(config::RunConfig&)>& change) {
  for (const std::int64_t microbatches : {1, 4}) {
    auto [first, second] = both_stages(layout, microbatches);
    first.optimizer.clip_grad = second.optimizer.clip_grad = 0;
    second.optimizer.bucket_size = 0;
    change(first);
    change(second);
    const Course want = train(first), got = train(second);
    if (microbatches == 1) expect_equal(got, want);
    for (std::size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], 1e-6 * want.losses[i]) << "step " << i + 1;
  }
}

TEST(BucketsOfALayer, TrainToTheSameLossesAsWholeGradients) {
  for (const Layout& layout : {Layout{.dp = 2}, Layout{.dp = 2, .pp = 2}, Layout{.dp = 2, .pp = 2, .vpp = 2},
                               Layout{.dp = 2, .pp = 2, .schedule = "zb-h1"}})
    for (const bool untied : {false, true})
      expect_as_whole(layout, [&](config::RunConfig& config) {
        config.model.num_layers = 8;
        config.model.untie_embeddings_and_output_weights = untied;
      });
}

TEST(BucketsOfALayer, TrainBesideAPipelineRankThatHoldsWholeGradients) {
  std::vector<bool> pooled;
  const auto uneven = [&](config::RunConfig& config) {
    config.model.num_layers = 8;
    config.parallel.pp_layout = "Et|tttttttL";
    const plan::ResolvedRun run = plan::resolve(config);
    pooled.clear();
    for (int pp_rank = 0; pp_rank < 2; ++pp_rank) {
      const auto specs = plan::gpt_parameters(run.shape, 1, 0, plan::parts_of_rank(run.parts, run.placement, pp_rank));
      pooled.push_back(plan::rank_gradient_pool(run, specs, plan::rank_layout(run, specs)).has_value());
    }
  };
  expect_as_whole({.dp = 2, .pp = 2}, uneven);
  EXPECT_EQ(pooled, (std::vector<bool>{false, true}));
}

TEST(ShardedGradientsMemory, IsThatOfThePlanWithinTwoPercent) {
  for (const char* strategy : {"optim", "optim_grads"})
    for (const Layout& layout : {Layout{.dp = 2}, Layout{.dp = 4}, Layout{.dp = 4, .dtype = "bf16"},
                                 Layout{.dp = 4, .pp = 2, .schedule = "zb-h1"}}) {
      auto config = config_of(layout, true);
      config.model.hidden_size = 96;
      config.model.num_layers = 8;
      config.optimizer.data_parallel_sharding_strategy = strategy;
      const plan::ResolvedRun run = plan::resolve(config);
      comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
        kernels::configure_thread(1);
        const auto counter = std::make_shared<pipeline::testing::AllocationCounter>();
        const pipeline::testing::CountAllocations counting(counter);
        Engine engine(run, world, at::kCPU);
        testing::take_step(run, engine, 0);
        (void)engine.parameters.values();
        const auto planned = plan::memory_plan(run, 0, engine.context.index(plan::Axis::Pp), 0);
        EXPECT_EQ(planned.gradients, engine.parameters.gradient_bytes());
        const auto want = static_cast<double>(planned.parameters + planned.gradients + planned.optimizer_state);
        EXPECT_NEAR(static_cast<double>(counter->bytes()), want, 0.02 * want) << strategy << " dp " << layout.dp;
      });
    }
}

/// The article's table, bytes of a parameter on d ranks. Of 16-bit gradients it counts 4/d more: a copy in fp32, which
/// this optimizer does without.
struct Row {
  const char *dtype, *gradients;
  double each, shared;
};

class BytesOfAParameter : public ::testing::TestWithParam<Row> {};

TEST_P(BytesOfAParameter, AreThoseOfTheTableWithinTwoPercent) {
  const Row& row = GetParam();
  for (const int dp : {1, 2, 4}) {
    auto config = config_of({.dp = dp, .dtype = row.dtype}, true);
    config.model.hidden_size = 96;  // so that padding is little
    config.optimizer.bucket_size = 100000;
    config.optimizer.grad_dtype = row.gradients;
    const plan::ResolvedRun run = plan::resolve(config);
    comm::run_ranks(dp, [&](const comm::Group& world) {
      kernels::configure_thread(1);
      Engine engine(run, world, at::kCPU);
      testing::take_step(run, engine, 0);
      double elements = 0;
      for (const auto& parameter : engine.parameters.all()) elements += static_cast<double>(parameter->value.numel());
      const auto values = static_cast<std::int64_t>(engine.parameters.values().nbytes());
      const std::int64_t gradients = engine.parameters.gradient_bytes();
      const double bytes = static_cast<double>(values + gradients + engine.optimizer.bytes()) / elements;
      const double want = row.each + row.shared / dp;
      EXPECT_NEAR(bytes, want, 0.02 * want) << "dp " << dp;
      const plan::MemoryPlan planned = plan::memory_plan(run, 0, 0, 0);
      EXPECT_EQ(planned.parameters, values);
      EXPECT_EQ(planned.gradients, gradients);
      EXPECT_EQ(planned.optimizer_state, engine.optimizer.bytes());
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Table, BytesOfAParameter,
                         ::testing::Values(Row{"fp16", "fp16", 4, 12}, Row{"bf16", "fp32", 6, 12},
                                           Row{"fp32", "fp32", 8, 8}),
                         [](const auto& test) { return std::string(test.param.dtype) + "_" + test.param.gradients; });

}  // namespace
}  // namespace megatron::train
