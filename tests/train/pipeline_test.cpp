#include "megatron/train/pipeline.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/model/options.h"
#include "megatron/parallel/backward.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/schedule/pictures/draw.h"
#include "tests/pipeline/live_bytes.h"
#include "tests/testing/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace megatron::train {
namespace {

using schedule::Kind;

// Bytes that each stage keeps of a microbatch, measured on a program of one: after its forward, and after the first
// half of its backward.
struct StageBytes {
  double activation = 0, weight = 0;
};

StageBytes measured_bytes(const plan::ResolvedRun& run, double message, const plan::StageSpec& part, bool partial) {
  auto specs = plan::model_parameters(run.shape, 1, 0, {part});
  auto layout = plan::buffer_layout(specs, 0);
  const parallel::ParameterStore store(std::move(specs), std::move(layout), at::kDouble, at::kCPU, 1);
  const model::TransformerOptions options = model::transformer_options(run.config, run.shape);
  const model::TransformerStage stage(options, part, store, {});
  const auto counter = std::make_shared<pipeline::testing::AllocationCounter>();
  const pipeline::testing::CountAllocations counting(counter);
  const std::vector<std::int64_t> sample = {0};
  std::optional<parallel::GraphLeaf> leaf;
  at::Tensor x;
  if (!part.embedding) x = leaf.emplace(at::ones({10, 1, run.shape.hidden}, at::kDouble)).take();
  at::Tensor out;
  {
    auto batch = synthetic_batch(sample, 10, run.shape.vocab, 1, at::kCPU);
    batch.partial_recomputation = partial;
    out = part.output ? stage.loss(std::move(x), batch, true).sum : stage.forward(std::move(x), batch, true);
  }
  parallel::GraphRoot root(out);
  const double out_bytes = part.output ? 8 : message;
  StageBytes bytes;
  bytes.activation = static_cast<double>(counter->bytes()) - out_bytes;
  store.gradient_queue().defer(true);
  root.backward(at::ones_like(out.detach()));
  auto waiting = store.gradient_queue().take();
  const auto dx = leaf ? leaf->take_gradient() : at::Tensor();
  leaf.reset();
  bytes.weight = static_cast<double>(counter->bytes()) - out_bytes - (dx.defined() ? message : 0);
  return bytes;
}

// Of every stage.
schedule::Costs measured_bytes(const plan::ResolvedRun& run, double message) {
  schedule::Costs costs;
  for (const plan::StageSpec& part : run.parts) {
    const StageBytes bytes = measured_bytes(run, message, part, false);
    costs.activation_bytes.push_back(bytes.activation);
    costs.weight_bytes.push_back(bytes.weight);
    const StageBytes partial = measured_bytes(run, message, part, true);
    costs.partial_activation_bytes.push_back(partial.activation);
    costs.partial_weight_bytes.push_back(partial.weight);
  }
  return costs;
}

// Every schedule without recomputation, and where some microbatches recompute all layers and others none or one.
std::vector<std::pair<std::string, config::RunConfig>> memory_cases() {
  std::vector<std::pair<std::string, config::RunConfig>> cases;
  for (const schedule::ScheduleInfo& info : schedule::schedules()) {
    auto config = testing::tiny_config();
    config.model.num_layers = 4;
    config.model.hidden_dropout = config.model.attention_dropout = 0.1;
    config.parallel.pp = config.parallel.world_size = 2;
    config.parallel.pp_schedule = info.name;
    config.parallel.vpp = info.min_chunks;
    cases.emplace_back(info.name, config);
    config.train.recompute = "full";
    config.train.recompute_partial_microbatches = 1;
    cases.emplace_back(concat(info.name, ", partial"), config);
    config.train.recompute_method = "block";
    config.train.recompute_num_layers = 1;
    cases.emplace_back(concat(info.name, ", partial of a block"), config);
    config.train.recompute = "selective";
    config.train.recompute_method = "uniform";
    config.train.recompute_num_layers = 0;
    config.train.recompute_modules = {"core_attn", "mlp"};
    cases.emplace_back(concat(info.name, ", partial of modules"), config);
  }
  return cases;
}

TEST(Pipeline, HoldsThroughoutExactlyTheBytesThatTheSimulatorCounts) {
  for (const auto& [name, config] : memory_cases()) {
    SCOPED_TRACE(name);
    const plan::ResolvedRun run = plan::resolve(config);
    const double message = 10 * 24 * 8;
    const auto costs = measured_bytes(run, message);
    const auto program = plan::pipeline_program(run, 4);
    const auto simulated = schedule::simulate(program, costs);
    comm::run_ranks(2, [&](const comm::Group& world) {
      kernels::configure_thread(1);
      const Engine engine(run, world, at::kCPU);
      struct Adapter final : pipeline::Stage {
        const plan::ResolvedRun& run;
        const model::TransformerStage& model;
        const plan::StageSpec& part;
        Adapter(const plan::ResolvedRun& r, const model::TransformerStage& m, const plan::StageSpec& p)
            : run(r), model(m), part(p) {}
        pipeline::Output forward(int microbatch, at::Tensor x, bool partial) override {
          const std::vector<std::int64_t> sample = {microbatch};
          auto batch = synthetic_batch(sample, 10, run.shape.vocab, 1, at::kCPU);
          batch.partial_recomputation = partial;
          if (!part.output) return {model.forward(std::move(x), batch, true), 0};
          const auto loss = model.loss(std::move(x), batch, true);
          return {loss.sum, loss.count};
        }
        std::vector<std::int64_t> boundary_shape(int) const override { return {10, 1, 24}; }
      };
      std::vector<std::unique_ptr<Adapter>> stages;
      std::vector<pipeline::Stage*> pointers;
      for (const int stage : run.placement.stages_of(world.rank())) {
        stages.push_back(
            std::make_unique<Adapter>(run, engine.stages[stages.size()], run.parts[static_cast<std::size_t>(stage)]));
        pointers.push_back(stages.back().get());
      }
      pipeline::Link link(run.placement, world, {},
                          {.shape = {10, 1, 24}, .tensor = engine.parameters.values().options()});
      pipeline::testing::LiveBytes live(program, world.rank(), costs, message);
      const pipeline::testing::CountAllocations counting(live.counter());
      pipeline::run(program, world.rank(), pointers, link,
                    {.weight_gradients = &engine.parameters.gradient_queue(),
                     .observe = [&](const schedule::Op& op, auto, auto) { live.after(op); }});
      EXPECT_EQ(live.peak(), simulated.peak_bytes[static_cast<std::size_t>(world.rank())]);
    });
  }
}

// Losses and norms of two steps with dropout.
std::vector<double> course_of(const config::RunConfig& config) {
  const plan::ResolvedRun run = plan::resolve(config);
  std::vector<double> course;
  comm::run_ranks(config.parallel.world_size, [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    for (std::int64_t i = 0; i < 2; ++i) {
      const StepResult result = testing::take_step(run, engine, i);
      if (world.rank() == 0) course.insert(course.end(), {result.loss, result.grad_norm});
    }
  });
  return course;
}

TEST(Pipeline, TrainsBitByBitAlikeWhicheverMicrobatchesRecompute) {
  for (const char* dtype : {"fp64", "bf16"})
    for (const char* schedule : {"1f1b", "interleaved", "zb-h1", "zb-v"}) {
      const int vpp = schedule::schedule_named(schedule).min_chunks;
      auto config = testing::tiny_pipeline_config(2, 1, 2, vpp, /*sp=*/false, schedule, dtype);
      config.model.hidden_dropout = config.model.attention_dropout = 0.1;
      const std::vector<double> kept = course_of(config);
      config.train.recompute = "full";
      EXPECT_EQ(course_of(config), kept) << schedule;
      for (const std::int64_t partial : {1, 2})
        for (const char* method : {"uniform", "block"}) {
          config.train.recompute_partial_microbatches = partial;
          config.train.recompute_method = method;
          config.train.recompute_num_layers = 1;
          EXPECT_EQ(course_of(config), kept) << schedule << " " << dtype << " " << partial << " " << method;
        }
      config.train.recompute = "selective";
      config.train.recompute_method = "uniform";
      config.train.recompute_num_layers = 0;
      config.train.recompute_modules = {"core_attn", "mlp"};
      config.train.recompute_partial_microbatches = 1;
      EXPECT_EQ(course_of(config), kept) << schedule << " " << dtype << " modules";
    }
}

TEST(Pipeline, MeasuresTheTimelineOfItsLastStep) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "pipeline_trace.json";
  auto config = testing::tiny_config();
  config.parallel.pp = config.parallel.world_size = 2;
  config.log.trace = path.string();
  const plan::ResolvedRun run = plan::resolve(config);
  comm::run_ranks(2, [&](const comm::Group& world) {
    kernels::configure_thread(1);
    Engine engine(run, world, at::kCPU);
    ASSERT_TRUE(engine.pipeline.measures());
    EXPECT_FALSE(engine.pipeline.timeline());
    testing::take_step(run, engine, 0);
    testing::take_step(run, engine, 1);
    const auto timeline = engine.pipeline.timeline();
    ASSERT_TRUE(timeline);
    for (const auto& slots : timeline->ranks) {
      std::vector<int> seen(2, 0);
      double now = 0;
      for (const auto& slot : slots) {
        EXPECT_GE(slot.start, now) << "operations of a rank overlap";
        EXPECT_GE(slot.end, slot.start);
        now = slot.end;
        seen[0] += slot.op.kind == Kind::Forward;
        seen[1] += slot.op.kind == Kind::Backward;
      }
      EXPECT_EQ(seen, (std::vector<int>{4, 4}));
    }
    // A forward ends before the next stage's begins: the ranks' clocks agree.
    const auto find = [&](int rank, schedule::Op op) {
      for (const auto& slot : timeline->ranks[static_cast<std::size_t>(rank)])
        if (slot.op == op) return slot;
      return schedule::Slot();
    };
    for (int m = 0; m < 4; ++m) {
      EXPECT_LE(find(0, {Kind::Forward, 0, m}).end, find(1, {Kind::Forward, 1, m}).start);
      EXPECT_LE(find(1, {Kind::Backward, 1, m}).end, find(0, {Kind::Backward, 0, m}).start);
    }
    if (world.rank() != 0) return;
    const std::string said = write_timeline(*timeline, run, 2, path);
    EXPECT_NE(said.find("pipeline_trace.json and "), std::string::npos) << said;
    std::ifstream file(path);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    EXPECT_EQ(schedule::parse_chrome_trace(text, "trace").ranks.size(), 2U);
    std::ifstream picture(std::filesystem::path(path).replace_extension(".svg"));
    const std::string drawn((std::istreambuf_iterator<char>(picture)), {});
    EXPECT_NE(drawn.find("1f1b, 2 ranks, 2 stages, 4 microbatches, iteration 2: simulated, and measured"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace megatron::train
