#include <ATen/TensorOperators.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/stack.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

/// The model's own loss as ATen computes it from whole logits; with it what it collects: a scalar per microbatch.
model::LossSum loss_of_aten(const model::TransformerStage& stage, at::Tensor x, const model::Batch& batch,
                            bool training) {
  const auto log_p = stage.logits(std::move(x), batch, training).to(at::kDouble).log_softmax(-1);
  const auto mask = batch.loss_mask_bs.t().reshape(-1).to(at::kDouble);
  const auto each = at::nll_loss(log_p.reshape({-1, log_p.size(-1)}), batch.labels_bs.t().reshape(-1), {},
                                 /*reduction: none=*/0);
  model::LossSum loss;
  loss.sum = (each * mask).sum();
  loss.count = mask.sum().item<double>();
  loss.non_loss = loss.sum.detach() / loss.count;
  return loss;
}

std::vector<StepResult> steps(const plan::ResolvedRun& run, const ForwardStep& forward_step) {
  std::vector<StepResult> results;
  comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    engine.pipeline.use(forward_step);
    for (int i = 0; i < 3; ++i) {
      const StepResult result = testing::take_step(run, engine, i);
      if (world.rank() == 0) results.push_back(result);
    }
  });
  return results;
}

struct Spread {
  int tp, pp, vpp;
  bool sp;
  const char* schedule;
};

TEST(ForwardStep, WithAtensCrossEntropyTrainsAsTheModelsOwnLossInEveryLayout) {
  for (const Spread& spread : {Spread{1, 1, 1, false, ""},
                               {2, 1, 1, false, ""},
                               {2, 2, 1, true, "1f1b"},
                               {2, 2, 1, false, "zb-h1"},
                               {1, 2, 2, false, "zb-v"}})
    for (const char* dtype : {"fp64", "fp16"}) {
      auto config =
          testing::tiny_pipeline_config(spread.tp, 1, spread.pp, spread.vpp, spread.sp, spread.schedule, dtype);
      config.optimizer.initial_loss_scale = 1024;
      config.model.untie_embeddings_and_output_weights = spread.sp;
      const plan::ResolvedRun run = plan::resolve(config);
      const auto own = steps(run, {}), given = steps(run, {.loss = loss_of_aten, .collected = {}});
      ASSERT_EQ(own.size(), 3);
      for (std::size_t i = 0; i < own.size(); ++i) {
        const double near = dtype == std::string("fp64") ? 1e-10 : 2e-3;  // fp16: logits are rounded before softmax
        EXPECT_NEAR(given[i].loss, own[i].loss, near) << dtype << " tp " << spread.tp << " " << spread.schedule;
        EXPECT_NEAR(given[i].grad_norm, own[i].grad_norm, near * 10) << dtype << " " << spread.schedule;
        EXPECT_EQ(given[i].tokens, own[i].tokens);
        EXPECT_FALSE(given[i].skipped);
      }
    }
}

TEST(ForwardStep, IsRefusedBeforeAnythingIsMadeWhereItsFiguresCannotBeFields) {
  const plan::ResolvedRun run = plan::resolve(testing::tiny_pipeline_config(1, 1, 1, 1, false, "", "fp64"));
  for (const std::vector<std::string>& figures :
       {std::vector<std::string>{"loss"}, {""}, {"mine", "mine"}, {"mine", "grad_norm"}}) {
    EXPECT_THROW(check_forward_step({.loss = loss_of_aten, .collected = {}, .figures = figures}, run), ConfigError);
  }
  EXPECT_NO_THROW(check_forward_step({.loss = loss_of_aten, .collected = {}, .figures = {"mine", "mine/2"}}, run));
  EXPECT_NO_THROW(check_forward_step({}, run));
}

TEST(ForwardStep, CollectsOfEachMicrobatchOfAnEvaluationInOrderWhereTheLastStageIs) {
  const plan::ResolvedRun run = plan::resolve(testing::tiny_pipeline_config(1, 1, 2, 1, false, "1f1b", "fp64"));
  const auto batch = [&](std::size_t m) {
    const std::vector<std::int64_t> samples = {static_cast<std::int64_t>(m)};
    return synthetic_batch(samples, 10, 61, 1, at::kCPU);
  };
  comm::run_ranks(2, [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    std::vector<double> single;  // each microbatch evaluated by itself, with the model's own loss
    for (std::size_t m = 0; m < 3; ++m)
      single.push_back(evaluate(engine.pipeline, engine.context, 1, [&](std::size_t) { return batch(m); }).loss);
    engine.pipeline.use({.loss = loss_of_aten, .collected = {}});
    const Evaluation all = evaluate(engine.pipeline, engine.context, 3, batch);
    ASSERT_EQ(all.non_loss.size(), world.rank() == 1 ? 3 : 0);
    for (std::size_t m = 0; m < all.non_loss.size(); ++m) EXPECT_NEAR(all.non_loss[m].item<double>(), single[m], 1e-10);
  });
}

/// With it as figures the loss again and the number of tokens.
model::LossSum loss_with_figures(const model::TransformerStage& stage, at::Tensor x, const model::Batch& batch,
                                 bool training) {
  model::LossSum loss = loss_of_aten(stage, std::move(x), batch, training);
  loss.figures = at::stack({loss.sum.detach(), batch.loss_mask_bs.sum().to(at::kDouble)});
  return loss;
}

TEST(ForwardStep, ReportsFiguresAsMeansOverTheGlobalBatchInTrainingAndValidation) {
  for (const Spread& spread : {Spread{1, 1, 1, false, ""}, {2, 2, 1, true, "1f1b"}, {1, 2, 2, false, "zb-v"}}) {
    const plan::ResolvedRun run = plan::resolve(
        testing::tiny_pipeline_config(spread.tp, 2, spread.pp, spread.vpp, spread.sp, spread.schedule, "fp64"));
    comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      Engine engine(run, world, at::kCPU);
      engine.pipeline.use({.loss = loss_with_figures, .collected = {}, .figures = {"again", "one"}});
      const auto expect_means = [&](const std::vector<LossFigure>& figures, double loss) {
        ASSERT_EQ(figures.size(), 2u);
        EXPECT_EQ(figures[0].name, "again");
        EXPECT_NEAR(figures[0].value, loss, 1e-12);
        EXPECT_EQ(figures[1].name, "one");
        EXPECT_DOUBLE_EQ(figures[1].value, 1);
      };
      const StepResult step = testing::take_step(run, engine, 0);
      expect_means(step.figures, step.loss);
      const auto batch = [&](std::size_t m) {
        return synthetic_batch(std::vector{static_cast<std::int64_t>(m)}, 10, 61, 1, at::kCPU);
      };
      const Evaluation evaluation = evaluate(engine.pipeline, engine.context, 3, batch);
      expect_means(evaluation.figures, evaluation.loss);
      engine.pipeline.use({.loss = loss_of_aten, .collected = {}, .figures = {"missing"}});
      if (spread.pp == 1) {
        EXPECT_THROW(testing::take_step(run, engine, 1), std::logic_error);
      }
    });
  }
}

TEST(ForwardStep, IsRefusedOfAModelThatPredictsByDepths) {
  config::RunConfig config = testing::tiny_config();
  config.model.position_embedding_type = "rope";
  config.model.mtp_num_layers = 1;
  const plan::ResolvedRun run = plan::resolve(config);
  Engine engine(run, {}, at::kCPU);
  EXPECT_THROW(engine.pipeline.use({.loss = loss_of_aten, .collected = {}}), ConfigError);
  engine.pipeline.use({});
}

TEST(ForwardStep, IsRefusedWhereAFigureHasNoNameOfItsOwn) {
  using Names = std::vector<std::string>;
  const plan::ResolvedRun run = plan::resolve(testing::tiny_config());
  Engine engine(run, {}, at::kCPU);
  for (const Names& names : {Names{""}, Names{"mine", "yours", "mine"}, Names{"mine", "loss"}, Names{"iteration"},
                             Names{"ppl"}, Names{"valid_loss"}, Names{"mtp_1_loss"}}) {
    EXPECT_THROW(engine.pipeline.use({.loss = loss_of_aten, .collected = {}, .figures = names}), ConfigError)
        << names.back();
  }
  engine.pipeline.use({.loss = loss_of_aten, .collected = {}, .figures = {"mine", "loss/mine"}});
  EXPECT_EQ(engine.pipeline.forward_step().figures.size(), 2u);
}

TEST(ForwardStep, ThatReturnsNoScalarIsRefused) {
  const plan::ResolvedRun run = plan::resolve(testing::tiny_config());
  Engine engine(run, {}, at::kCPU);
  engine.pipeline.use(
      {.loss =
           [](const model::TransformerStage& stage, at::Tensor x, const model::Batch& batch, bool training) {
             return model::LossSum{.sum = stage.logits(std::move(x), batch, training), .count = 1};
           },
       .collected = {}});
  EXPECT_THROW(testing::take_step(run, engine, 0), std::logic_error);
}

}  // namespace
}  // namespace megatron::train
