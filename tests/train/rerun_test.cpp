// Steps whose passes are computed again (guard.rerun_interval).
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/train/data/model_samples.h"
#include "megatron/train/iteration.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

constexpr std::int64_t kSteps = 4;

/// Step number `i` on synthetic tokens, checked as `check` says.
StepResult step_of(Engine& engine, const plan::ResolvedRun& run, std::int64_t i, StepCheck check) {
  const std::int64_t batch = run.config.train.global_batch_size;
  check.of_share = [&](int places) -> MicrobatchSource {
    return [&, samples = microbatches(run, engine.context, i * batch, batch, places)](std::size_t m) {
      return model_samples(run.config.model.architecture).synthetic(run, samples.at(m), engine.context.device());
    };
  };
  const MicrobatchSource own = check.of_share(0);
  const auto count = microbatches(run, engine.context, i * batch, batch).size();
  return engine.step(static_cast<int>(count), own, run.rates_at(i * batch), false, false, check);
}

/// What a training leaves: the results of the first rank, and by rank the weights that it updates, by bucket.
struct Course {
  std::vector<StepResult> steps;
  std::vector<std::vector<at::Tensor>> weights;
};

/// An error of `rank` in step number `step`.
struct Injected {
  BitFlip flip = BitFlip::None;
  std::int64_t step = 0;
  int rank = 0;
};

Course course_of(config::RunConfig config, bool checked, const Injected& error = {},
                 const std::function<ForwardStep(int rank)>& forward_step = {}) {
  config.guard.rerun_interval = checked ? 1 : 0;
  const plan::ResolvedRun run = plan::resolve(config);
  Course course;
  course.weights.resize(static_cast<std::size_t>(run.grid.world_size()));
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    if (forward_step) engine.pipeline.use(forward_step(world.rank()));
    for (std::int64_t i = 0; i < kSteps; ++i) {
      StepCheck check{.due = checked};
      if (i == error.step && world.rank() == error.rank) check.flip = error.flip;
      const StepResult result = step_of(engine, run, i, check);
      if (world.rank() == 0) course.steps.push_back(result);
    }
    for (const plan::Shard& shard : engine.owned)
      course.weights[static_cast<std::size_t>(world.rank())].push_back(
          engine.parameters.owned_values(shard.world).detach().clone());
  });
  return course;
}

bool weights_are_equal(const Course& a, const Course& b) {
  for (std::size_t rank = 0; rank < a.weights.size(); ++rank)
    for (std::size_t p = 0; p < a.weights[rank].size(); ++p)
      if (!at::equal(a.weights[rank][p], b.weights[rank][p])) return false;
  return true;
}

std::uint64_t bits(double number) { return std::bit_cast<std::uint64_t>(number); }

/// Bit by bit, but for the times.
void expect_equal(const Course& a, const Course& b) {
  for (std::size_t i = 0; i < kSteps; ++i) {
    EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << i;
    EXPECT_EQ(bits(a.steps[i].grad_norm), bits(b.steps[i].grad_norm)) << i;  // NaN where fp16 overflows
    EXPECT_EQ(a.steps[i].loss_scale, b.steps[i].loss_scale) << i;
    EXPECT_EQ(a.steps[i].skipped, b.steps[i].skipped) << i;
    for (std::size_t layer = 0; layer < a.steps[i].experts.layers(); ++layer)
      EXPECT_EQ(a.steps[i].experts.loads(layer)[0], b.steps[i].experts.loads(layer)[0]) << i;
  }
  EXPECT_TRUE(weights_are_equal(a, b));
}

struct Layout {
  std::string name;
  config::RunConfig config;
};

/// All with dropout, the default.
std::vector<Layout> layouts() {
  std::vector<Layout> all;
  all.push_back({"tp2 dp2 pp2", testing::tiny_pipeline_config(2, 2, 2, 1, true, "zb-h1", "fp32")});
  auto fp16 = testing::tiny_config(1, 1, "fp16");
  fp16.optimizer.initial_loss_scale = 0x1p22;  // overflows at first
  fp16.optimizer.hysteresis = 1;
  all.push_back({"fp16", fp16});
  auto gradients = testing::tiny_pipeline_config(1, 2, 2, 2, false, "interleaved", "bf16");
  gradients.optimizer.use_distributed_optimizer = true;
  gradients.optimizer.data_parallel_sharding_strategy = "optim_grads";
  all.push_back({"ZeRO 2", gradients});
  auto parameters = testing::tiny_config(2, 2, "fp32");
  parameters.optimizer.use_distributed_optimizer = true;
  parameters.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
  all.push_back({"ZeRO 3", parameters});
  auto sequence = testing::tiny_config(1, 2, "fp32");
  sequence.parallel.cp = 2;
  sequence.parallel.world_size = 4;
  sequence.data.seq_length = 12;
  sequence.model.attention_dropout = 0;
  all.push_back({"cp", sequence});
  auto experts = testing::tiny_config(1, 4, "fp32");
  experts.parallel.ep = 2;
  experts.model.num_experts = 4;
  experts.model.moe_ffn_hidden_size = 24;
  experts.model.moe_router_score_function = "sigmoid";
  experts.model.moe_router_enable_expert_bias = true;
  experts.model.moe_router_bias_update_rate = 0.05;
  experts.model.moe_input_jitter_eps = 0.2;
  all.push_back({"experts", experts});
  auto sharded = experts;
  sharded.optimizer.use_distributed_optimizer = true;
  sharded.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
  sharded.train.recompute = "full";
  all.push_back({"experts of ZeRO 3, recomputed", sharded});
  auto sentences = testing::tiny_config(1, 2, "fp32");  // whose head has a collective of its own in each pass
  sentences.model.architecture = "bert";
  all.push_back({"BERT", sentences});
  auto adapters = testing::tiny_config(2, 2, "fp32");
  adapters.lora.rank = 2;
  adapters.lora.dora = true;
  all.push_back({"adapters", adapters});
  auto depths = testing::tiny_config(1, 2, "fp32");
  depths.model.mtp_num_layers = 1;
  depths.model.position_embedding_type = "rope";
  all.push_back({"depths", depths});
  return all;
}

// The law: a check changes nothing, and repairs what went wrong once, whoever it was.
TEST(Rerun, LeavesTheCurveAndRepairsIt) {
  for (const Layout& layout : layouts()) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, layout.name);
    const Course plain = course_of(layout.config, /*checked=*/false);
    const int rank = static_cast<int>(plain.weights.size()) - 1;
    const Course repaired = course_of(layout.config, /*checked=*/true, {BitFlip::Once, 2, rank});
    expect_equal(plain, repaired);
    for (std::size_t i = 0; i < kSteps; ++i) {
      EXPECT_TRUE(repaired.steps[i].checked);
      ASSERT_EQ(repaired.steps[i].suspects.size(), i == 2 ? 1u : 0u) << i;
    }
    const supervise::Suspect& suspect = repaired.steps[2].suspects[0];
    EXPECT_EQ(suspect.rank, rank);
    EXPECT_EQ(suspect.wrong, 1);
    EXPECT_TRUE(suspect.certain);
    EXPECT_FALSE(suspect.persistent);
    EXPECT_NE(suspect.checksum, suspect.expected);
  }
}

// Its gradient reaches whoever computes the same copy; the other copy is right.
TEST(Rerun, AnErrorOfALossIsOneCopys) {
  const auto config = testing::tiny_pipeline_config(2, 2, 2, 1, true, "1f1b", "fp32");
  const auto loss_on = [](int faulty) {
    return [faulty](int rank) {
      const auto calls = std::make_shared<int>(0);
      ForwardStep step;
      step.loss = [=](const model::TransformerStage& stage, at::Tensor x, const model::Batch& batch,
                      bool training) -> model::LossSum {
        const bool errs = rank == faulty && (*calls)++ == 2;  // of two microbatches the second pass's first
        const at::Tensor sum = stage.logits(std::move(x), batch, training).square().sum();
        return {.sum = errs ? sum * 1.001 : sum, .count = static_cast<double>(batch.labels_bs.numel())};
      };
      return step;
    };
  };
  const Course plain = course_of(config, /*checked=*/false, {}, loss_on(-1));
  const int faulty = 7;  // the second slice of the last stage of the second copy
  const Course repaired = course_of(config, /*checked=*/true, {}, loss_on(faulty));
  expect_equal(plain, repaired);
  const plan::RankGrid grid = plan::resolve(config).grid;
  std::vector<int> copy = grid.peers(faulty, {plan::Axis::Tp, plan::Axis::Pp}), named;
  for (const supervise::Suspect& suspect : repaired.steps[0].suspects) {
    named.push_back(suspect.rank);
    EXPECT_EQ(suspect.wrong, 1);
  }
  EXPECT_EQ(named, copy);
  EXPECT_TRUE(repaired.steps[1].suspects.empty());
}

TEST(Rerun, WithoutACheckAFlippedBitGoesIntoTheWeights) {
  const config::RunConfig config = testing::tiny_config(1, 2, "fp32");
  const Course plain = course_of(config, /*checked=*/false);
  const Course flipped = course_of(config, /*checked=*/false, {BitFlip::Once, 2, 1});
  EXPECT_FALSE(weights_are_equal(plain, flipped));
  EXPECT_FALSE(flipped.steps[2].checked);
}

TEST(Rerun, OfThreeCopiesThePersistentErrorIsOneRanks) {
  for (const int ranks : {3, 4}) {
    config::RunConfig config = testing::tiny_config(1, ranks, "fp32");
    config.train.global_batch_size = ranks;
    const Course course = course_of(config, /*checked=*/true, {BitFlip::Always, 1, 1});
    ASSERT_EQ(course.steps[1].suspects.size(), 1u) << ranks;
    const supervise::Suspect& suspect = course.steps[1].suspects[0];
    EXPECT_EQ(suspect.rank, 1);
    EXPECT_TRUE(suspect.certain);
    EXPECT_EQ(suspect.wrong, 6);
    EXPECT_EQ(suspect.results, 6);
    EXPECT_TRUE(course.steps[1].has_persistent_error());
    EXPECT_TRUE(course.steps[1].skipped) << "nothing may be updated";
  }
}

TEST(Rerun, OfTwoCopiesEitherMayBeWrong) {
  const auto config = testing::tiny_config(2, 2, "fp32");
  const Course course = course_of(config, /*checked=*/true, {BitFlip::Always, 1, 1});
  ASSERT_EQ(course.steps[1].suspects.size(), 2u);
  EXPECT_EQ(course.steps[1].suspects[0].rank, 1);
  EXPECT_EQ(course.steps[1].suspects[1].rank, 3) << "the same slice of the other copy; others have agreed";
  EXPECT_FALSE(course.steps[1].suspects[0].certain);
  EXPECT_TRUE(course.steps[1].has_persistent_error());
}

}  // namespace
}  // namespace megatron::train
