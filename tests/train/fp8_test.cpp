#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/config/options.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/train/resume/resume.h"
#include "tests/pipeline/live_bytes.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/save_run.h"
#include "tests/train/tiny_run.h"

// Training in 8 bits: what a run resumes with, when its scales change, and how near its losses are to those of bf16.
// Layouts against one rank: tests/parity/fp8_layouts.h.
namespace megatron::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

config::RunConfig in_eight_bits(int tp, int dp, const char* dtype) {
  config::RunConfig config = testing::tiny_config(tp, dp, dtype);
  config.model.vocab_size = 64;                // without padding, which no checkpoint holds
  config.optimizer.initial_loss_scale = 1024;  // of fp16: no step is to be skipped
  config.fp8.format = "hybrid";
  return config;
}

/// What one rank saw of a run.
struct Fp8Leg {
  std::vector<double> losses = {};
  at::Tensor ended = {}, scales = {}, history = {};
  std::vector<std::string> messages = {};
};

class Fp8Resume : public ::testing::Test {
 protected:
  /// Begins, or resumes, until `last` steps are done, and saves.
  static Fp8Leg train(const config::RunConfig& config, std::int64_t last) {
    const plan::ResolvedRun run = plan::resolve(config);
    Fp8Leg first;
    comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      Engine engine(run, world, at::kCPU);
      const Start start = start_run(run, engine);
      Fp8Leg leg{.messages = start.messages};
      for (std::int64_t i = start.state.iteration; i < last; ++i)
        leg.losses.push_back(testing::take_step(run, engine, i).loss);
      leg.ended = engine.parameters.values().clone();
      if (engine.fp8 && config.fp8.recipe == "delayed") {
        leg.scales = engine.fp8->scales().clone();
        leg.history = engine.fp8->history().clone();
      }
      const RunState state{.iteration = last, .consumed_samples = 4 * last, .schedule_samples = 4 * last};
      testing::save_run(fs::path(config.train.out) / "checkpoints", state, engine, config::save_toml(run.config), 0);
      if (world.rank() == 0) first = std::move(leg);
    });
    return first;
  }

  fs::path folder(const std::string& name) const { return temporary_.path() / name; }

 private:
  const TemporaryFolder temporary_;
};

TEST_F(Fp8Resume, InPartsIsTheSameToTheBit) {
  for (const char* dtype : {"bf16", "fp16", "fp32"}) {
    config::RunConfig straight = in_eight_bits(1, 1, dtype);
    straight.fp8.amax_history_len = 3;
    straight.fp8.amax_compute_algo = "max";
    config::RunConfig parts = straight;
    straight.train.out = folder(concat(dtype, " straight")).string();
    parts.train.out = folder(concat(dtype, " parts")).string();
    const Fp8Leg whole = train(straight, 6);
    const Fp8Leg before = train(parts, 2), after = train(parts, 6);
    EXPECT_TRUE(at::equal(after.ended, whole.ended)) << dtype;
    EXPECT_TRUE(at::equal(after.scales, whole.scales)) << dtype;
    EXPECT_TRUE(at::equal(after.history, whole.history)) << dtype;
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(after.losses.at(i), whole.losses.at(i + 2)) << dtype << i;
    EXPECT_GT(before.scales.max().item<float>(), 1) << "there was nothing to resume with";
    EXPECT_FALSE(at::equal(before.history, whole.history));
  }
}

// Of scales that follow from the tensors at hand there is nothing to keep.
class Fp8ResumeOwn : public Fp8Resume, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Recipes, Fp8ResumeOwn, ::testing::Values("tensorwise", "blockwise", "mxfp8"));

TEST_P(Fp8ResumeOwn, WithoutScalesOfStepsIsTheSameToTheBit) {
  config::RunConfig straight = in_eight_bits(1, 1, "bf16");
  straight.fp8.recipe = GetParam();
  config::RunConfig parts = straight;
  straight.train.out = folder("straight").string();
  parts.train.out = folder("parts").string();
  const Fp8Leg whole = train(straight, 4), before = train(parts, 2), after = train(parts, 4);
  EXPECT_TRUE(at::equal(after.ended, whole.ended));
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(after.losses.at(i), whole.losses.at(i + 2)) << i;
  EXPECT_FALSE(before.scales.defined());
  EXPECT_EQ(std::ranges::count_if(after.messages, [](const auto& line) { return line.find("fp8") != line.npos; }), 0);
  for (const auto& [name, tensor] : checkpoint::read_manifest(folder("parts") / "checkpoints/iter_0000004").tensors)
    EXPECT_EQ(name.find("fp8"), std::string::npos) << name;
  parts.fp8.recipe = "delayed";
  EXPECT_EQ(std::ranges::count(train(parts, 5).messages,
                               "warning: scales of fp8 begin as 1: the checkpoint does not have them"),
            1);
}

// As many layers, but others.
TEST_F(Fp8Resume, ScalesOfOtherLayersAreNotTaken) {
  config::RunConfig config = in_eight_bits(1, 1, "bf16");
  config.model.num_layers = 4;
  config.fp8.first_last_layers_bf16 = true;
  config.fp8.num_layers_at_start_in_bf16 = 2;
  config.fp8.num_layers_at_end_in_bf16 = 0;
  config.train.out = folder("run").string();
  train(config, 2);
  const auto warnings = [&](std::int64_t last) {
    return std::ranges::count(train(config, last).messages,
                              "warning: scales of fp8 begin as 1: the checkpoint has those of other layers");
  };
  EXPECT_EQ(warnings(3), 0);
  std::swap(config.fp8.num_layers_at_start_in_bf16, config.fp8.num_layers_at_end_in_bf16);
  EXPECT_EQ(warnings(4), 1);
}

TEST_F(Fp8Resume, InAnotherLayoutIsTheSameToRounding) {
  config::RunConfig straight = in_eight_bits(1, 1, "fp64"), parts = straight;
  straight.train.out = folder("straight").string();
  parts.train.out = folder("parts").string();
  const Fp8Leg whole = train(straight, 5);
  train(parts, 2);
  parts.parallel.tp = parts.parallel.pp = 2;
  parts.parallel.sp = true;
  parts.parallel.world_size = 4;
  const Fp8Leg split = train(parts, 4);
  parts.parallel = straight.parallel;
  parts.parallel.world_size = 2;
  parts.optimizer.use_distributed_optimizer = true;
  const Fp8Leg last = train(parts, 5);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(split.losses.at(i), whole.losses.at(i + 2), 1e-10) << i;
  EXPECT_NEAR(last.losses.at(0), whole.losses.at(4), 1e-10);
  EXPECT_TRUE(at::equal(last.scales, whole.scales)) << "powers of two";
}

TEST_F(Fp8Resume, SaysWhereScalesBeginAsOne) {
  config::RunConfig config = in_eight_bits(1, 1, "bf16");
  config.train.out = folder("run").string();
  config.fp8.format = "none";
  train(config, 1);
  config.fp8.format = "hybrid";
  const auto about_scales = [](const Fp8Leg& leg) {
    return std::ranges::count_if(leg.messages, [](const std::string& line) {
      return line == "warning: scales of fp8 begin as 1: the checkpoint does not have them";
    });
  };
  EXPECT_EQ(about_scales(train(config, 2)), 1);
  config.fp8.amax_history_len = 4;  // a longer one has the step of the shorter one
  const Fp8Leg longer = train(config, 3);
  EXPECT_EQ(about_scales(longer), 0);
  EXPECT_EQ(longer.history[2].abs().max().item<float>(), 0);
  EXPECT_GT(longer.history[1].min().item<float>(), 0);
  config.fp8.format = "none";
  EXPECT_EQ(about_scales(train(config, 4)), 0);
}

TEST_F(Fp8Resume, FollowsAnotherFormatFromItsFirstStep) {
  config::RunConfig config = in_eight_bits(1, 1, "bf16");
  config.train.out = folder("run").string();
  train(config, 2);
  config.fp8.format = "e4m3";
  config.fp8.margin = 1;
  const plan::ResolvedRun run = plan::resolve(config);
  kernels::configure_thread(1);
  Engine engine(run, {}, at::kCPU);
  start_run(run, engine);
  for (std::int64_t layer = 0; layer < engine.fp8->layers(); ++layer) {
    const auto operand = plan::Fp8Operand::OutputGradient;
    const double amax = engine.fp8->history()[0][layer][static_cast<int>(operand)].item<float>();
    const double scaled = amax * engine.fp8->scale(layer, operand);
    EXPECT_LE(scaled, 224) << "of E4M3, with the margin";
    EXPECT_GT(scaled, 112);
  }
}

TEST_F(Fp8Resume, RefusesScalesThatNoRunHas) {
  config::RunConfig config = in_eight_bits(1, 1, "bf16");
  const plan::ResolvedRun run = plan::resolve(config);
  kernels::configure_thread(1);
  Engine engine(run, {}, at::kCPU);
  testing::take_step(run, engine, 0);
  const at::Tensor scale = engine.fp8->scales()[0][0];
  for (const float wrong : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const float right = scale.item<float>();
    scale.fill_(wrong);
    const fs::path checkpoints = folder(concat("wrong", wrong));
    testing::save_run(checkpoints, {.iteration = 1, .consumed_samples = 4, .schedule_samples = 4}, engine,
                      config::save_toml(run.config), 0);
    scale.fill_(right);
    try {
      load_run(checkpoints, engine);
      ADD_FAILURE() << wrong;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("must hold scales of fp8")) << wrong;
    }
  }
}

// A step that is skipped, for an infinity that 8 bits would cut off, leaves the scales; an evaluation does too.
TEST(Fp8Step, ChangesScalesWhereItUpdatesWeights) {
  config::RunConfig config = in_eight_bits(1, 1, "fp64");
  const plan::ResolvedRun run = plan::resolve(config);
  kernels::configure_thread(1);
  Engine engine(run, {}, at::kCPU);
  testing::take_step(run, engine, 0);
  const at::Tensor scales = engine.fp8->scales().clone(), history = engine.fp8->history().clone();
  const auto batch = [&](std::size_t m) {
    const std::vector<std::int64_t> sample = {static_cast<std::int64_t>(m)};
    return synthetic_batch(sample, config.data.seq_length, config.model.vocab_size, 1, at::kCPU);
  };
  evaluate(engine.pipeline, engine.context, 2, batch);
  EXPECT_TRUE(at::equal(engine.fp8->scales(), scales));
  EXPECT_GT(engine.fp8->magnitudes().max().item<float>(), 0) << "the next step forgets them";

  const at::Tensor weight = engine.parameters.get("decoder.layers.1.mlp.linear_fc2.weight")->value.detach();
  const at::Tensor first = weight[0][0], before = first.clone();
  first.fill_(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(testing::take_step(run, engine, 1).skipped);
  EXPECT_TRUE(at::equal(engine.fp8->scales(), scales));
  EXPECT_TRUE(at::equal(engine.fp8->history(), history));
  first.copy_(before);
  EXPECT_FALSE(testing::take_step(run, engine, 1).skipped);
  EXPECT_FALSE(at::equal(engine.fp8->history(), history));
}

/// Step `i` with one weight infinite, which it is not before and after.
StepResult step_with_an_infinite_weight(const plan::ResolvedRun& run, Engine& engine, std::int64_t i) {
  const at::Tensor first =
      engine.parameters.get("decoder.layers.1.mlp.linear_fc2.weight")->value.detach().select(0, 0).select(0, 0);
  const at::Tensor before = first.clone();
  first.fill_(std::numeric_limits<double>::infinity());
  StepResult result = testing::take_step(run, engine, i);
  first.copy_(before);
  return result;
}

// A tensor's own scale hides an infinity too. An evaluation between steps, by weights that were updated, is no matter
// to the next step's scales.
TEST(Fp8Step, SkipsWhatIsNotFiniteWithScalesOfTensors) {
  config::RunConfig config = in_eight_bits(1, 1, "fp64");
  config.fp8.recipe = "tensorwise";
  const plan::ResolvedRun run = plan::resolve(config);
  kernels::configure_thread(1);
  Engine engine(run, {}, at::kCPU), straight(run, {}, at::kCPU);
  const auto batch = [&](std::size_t m) {
    const std::vector<std::int64_t> sample = {static_cast<std::int64_t>(m)};
    return synthetic_batch(sample, config.data.seq_length, config.model.vocab_size, 1, at::kCPU);
  };
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(testing::take_step(run, engine, i).loss, testing::take_step(run, straight, i).loss) << i;
    evaluate(engine.pipeline, engine.context, 2, batch);
  }
  EXPECT_TRUE(step_with_an_infinite_weight(run, engine, 3).skipped);
  const StepResult next = testing::take_step(run, engine, 3);
  EXPECT_FALSE(next.skipped);
  EXPECT_EQ(next.loss, testing::take_step(run, straight, 3).loss);
}

// Of blocks nobody looks at magnitudes: products of what is not finite are NaN.
TEST(Fp8Step, SkipsWhatIsNotFiniteWithScalesOfBlocks) {
  for (const auto& [dtype, recipe] : {std::pair{"fp64", "blockwise"}, {"bf16", "blockwise"}, {"bf16", "mxfp8"}}) {
    config::RunConfig config = in_eight_bits(1, 1, dtype);
    config.fp8.recipe = recipe;
    const plan::ResolvedRun run = plan::resolve(config);
    kernels::configure_thread(1);
    Engine engine(run, {}, at::kCPU);
    EXPECT_FALSE(testing::take_step(run, engine, 0).skipped);
    EXPECT_TRUE(step_with_an_infinite_weight(run, engine, 1).skipped);
    EXPECT_FALSE(testing::take_step(run, engine, 1).skipped);
  }
}

class Fp8Held : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Recipes, Fp8Held, ::testing::Values("delayed", "tensorwise", "blockwise", "mxfp8"));

TEST_P(Fp8Held, IsWhatIsPlanned) {
  config::RunConfig config = in_eight_bits(1, 2, "bf16");
  config.model.hidden_size = 96;
  config.fp8.recipe = GetParam();
  config.fp8.amax_history_len = 64;
  config.optimizer.use_distributed_optimizer = true;
  const plan::ResolvedRun run = plan::resolve(config);
  comm::run_ranks(2, [&](const comm::Group& world) {
    kernels::configure_thread(1);
    const auto counter = std::make_shared<pipeline::testing::AllocationCounter>();
    const pipeline::testing::CountAllocations counting(counter);
    Engine engine(run, world, at::kCPU);
    testing::take_step(run, engine, 0);
    engine.parameters.await_values();
    const plan::MemoryPlan planned = plan::memory_plan(run, 0, 0, 0, kernels::instruction_set());
    EXPECT_EQ(planned.optimizer_state, engine.optimizer.bytes() + engine.fp8->bytes());
    const auto want =
        static_cast<double>(planned.parameters + planned.gradients + planned.optimizer_state + planned.packed_weights);
    EXPECT_NEAR(static_cast<double>(counter->bytes()), want, 0.02 * want);
  });
}

// The numbers of a product have 3 bits of mantissa, of gradients 2: a loss is off by some hundredths of what was
// learned, and learns as well. Scales that change with each microbatch leave other errors in each, gradients in E5M2
// larger ones.
TEST(Fp8Step, LearnsAsBf16Does) {
  const auto losses = [](const std::string& format, const char* dtype, const std::string& algo) {
    config::RunConfig config = in_eight_bits(1, 1, dtype);
    config.fp8.format = format;
    if (algo == "max" || algo == "most_recent")
      config.fp8.amax_compute_algo = algo;
    else
      config.fp8.recipe = algo;
    config.fp8.amax_history_len = 4;
    config.train.train_iters = 20;
    const plan::ResolvedRun run = plan::resolve(config);
    kernels::configure_thread(1);
    Engine engine(run, {}, at::kCPU);
    std::vector<double> all;
    for (std::int64_t i = 0; i < 20; ++i) all.push_back(testing::take_step(run, engine, i % 4).loss);
    return all;
  };
  const std::vector<double> bf16 = losses("none", "bf16", "max");
  const double learned = bf16.front() - bf16.back();
  ASSERT_GT(learned, 0.5);
  for (const auto& [format, dtype, algo] : {std::tuple{"hybrid", "bf16", "max"},
                                            {"e4m3", "bf16", "most_recent"},
                                            {"hybrid", "bf16", "tensorwise"},
                                            {"e4m3", "bf16", "blockwise"},
                                            {"e4m3", "bf16", "mxfp8"},
                                            {"hybrid", "bf16", "mxfp8"}}) {
    const std::vector<double> fp8 = losses(format, dtype, algo);
    EXPECT_NE(fp8.front(), bf16.front());
    const bool coarse = format == std::string("hybrid") && algo != std::string("max");
    for (std::size_t i = 0; i < fp8.size(); ++i)
      EXPECT_NEAR(fp8[i], bf16[i], (coarse ? 0.15 : 0.1) * learned) << format << ' ' << algo << " step " << i;
  }
}

}  // namespace
}  // namespace megatron::train
