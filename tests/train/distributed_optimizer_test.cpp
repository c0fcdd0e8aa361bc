#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/kernels/runtime.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/cost/rank_buffers.h"
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

Course course_of(const config::RunConfig& config) {
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
    const auto samples = plan::batch_plan(0, run.config.train.global_batch_size, 1, run.grid.sample_shares(),
                                          engine.context.samples().rank())
                             .microbatches;
    const auto evaluation = evaluate(engine.pipeline, engine.context, samples.size(), [&](std::size_t m) {
      return synthetic_batch(samples[m], run.config.data.seq_length, run.shape.vocab, 99, at::kCPU);
    });
    if (world.rank() == 0) course.evaluation = evaluation.loss;
    for (const auto& parameter : engine.parameters.all())
      course.parameters[static_cast<std::size_t>(world.rank())].push_back(parameter->arrived().detach().clone());
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
  const Course want = course_of(plain);
  expect_equal(course_of(sharded), want);
  sharded.optimizer.overlap_param_gather = sharded.optimizer.overlap_grad_reduce = false;
  plain.optimizer.overlap_grad_reduce = false;
  expect_equal(course_of(sharded), course_of(plain));
}

TEST_P(DistributedOptimizer, ClipsTheNormOfTheWholeModelCountedOnce) {
  for (const char* kind : {"l2", "inf", "l1", "3.5", "400"}) {
    auto plain = config_of(GetParam(), false), sharded = config_of(GetParam(), true);
    plain.optimizer.clip_grad = sharded.optimizer.clip_grad = 0.05;
    plain.optimizer.clip_norm = sharded.optimizer.clip_norm = kind;
    const Course want = course_of(plain), got = course_of(sharded);
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
  expect_equal(course_of(second), course_of(first));
  second.optimizer.overlap_grad_reduce = false;
  expect_equal(course_of(second), course_of(first));
}

// The sum over microbatches is then taken after that over ranks, not before it.
TEST_P(ShardedGradients, OfSeveralMicrobatchesTrainToTheSameLossesWithinAMillionth) {
  auto [first, second] = both_stages(GetParam(), 4);
  const Course want = course_of(first), got = course_of(second);
  const double tolerance = GetParam().dtype == std::string("fp32") ? 1e-6 : 2e-3;
  for (std::size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(got.norms[i], want.norms[i], 5 * tolerance * want.norms[i]) << "step " << i + 1;
  }
  if (GetParam().dp == 1) expect_equal(got, want);
}

const auto kShardedLayouts = ::testing::Values(
    Layout{}, Layout{.dp = 2}, Layout{.dp = 3}, Layout{.dp = 4}, Layout{.dp = 2, .dtype = "bf16"},
    Layout{.tp = 2, .dp = 2, .sp = true}, Layout{.dp = 2, .pp = 2}, Layout{.dp = 2, .pp = 2, .schedule = "gpipe"},
    Layout{.dp = 3, .pp = 2, .schedule = "zb-h1"}, Layout{.dp = 2, .pp = 2, .vpp = 2, .schedule = "zb-v"},
    Layout{.tp = 2, .dp = 2, .pp = 2, .sp = true});

INSTANTIATE_TEST_SUITE_P(Layouts, ShardedGradients, kShardedLayouts, name_of);

class ShardedParameters : public ::testing::TestWithParam<Layout> {};

// What is gathered in each pass are the bits of the last update; gradients are summed as with stage 2. Buckets end
// elsewhere, so the gradient norm's last bit may differ, and with it what is clipped.
TEST_P(ShardedParameters, TrainToTheSameBitsAsWholeOnesButForTheNorm) {
  for (const std::int64_t microbatches : {1, 4})
    for (const auto& [bucket_size, clip] : {std::pair<std::int64_t, double>{0, 0.05},
                                            {3000, 0.05},  // a tiny model's layers take turns where they are told to
                                            {3000, 0}}) {
      auto [first, second] = both_stages(GetParam(), microbatches);
      for (config::RunConfig* config : {&first, &second}) {
        config->model.num_layers = 4 * config->parallel.pp * config->parallel.vpp;
        config->optimizer.clip_grad = clip;
        config->optimizer.bucket_size = bucket_size;
      }
      first.optimizer.data_parallel_sharding_strategy = "optim_grads";
      second.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
      const Course want = course_of(first);
      for (const bool overlap : {true, false}) {
        second.optimizer.overlap_param_gather = overlap;
        const Course got = course_of(second);
        if (clip == 0) {
          expect_equal(got, want);
          continue;
        }
        const double tolerance = GetParam().dtype == std::string("fp32") ? 1e-6 : 2e-3;
        for (std::size_t i = 0; i < want.losses.size(); ++i)
          EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << "step " << i + 1;
        EXPECT_NEAR(got.evaluation, want.evaluation, tolerance * want.evaluation);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ShardedParameters, kShardedLayouts, name_of);

TEST(ShardedParametersOfOneMicrobatch, TrainToTheSameBitsAsThePlainOptimizer) {
  for (const Layout& layout : {Layout{.dp = 2}, Layout{.dp = 2, .dtype = "bf16"}, Layout{.dp = 2, .pp = 2}}) {
    auto [plain, shared] = both_stages(layout, 1);
    plain.optimizer.use_distributed_optimizer = false;
    plain.optimizer.clip_grad = shared.optimizer.clip_grad = 0;
    shared.optimizer.data_parallel_sharding_strategy = "optim_grads_params";
    shared.optimizer.bucket_size = 3000;
    expect_equal(course_of(shared), course_of(plain));
  }
}

void expect_as_whole(const Layout& layout, const std::function<void(config::RunConfig&)>& change) {
  for (const std::int64_t microbatches : {1, 4}) {
    auto [first, second] = both_stages(layout, microbatches);
    first.optimizer.clip_grad = second.optimizer.clip_grad = 0;
    second.optimizer.bucket_size = 0;
    change(first);
    change(second);
    const Course want = course_of(first), got = course_of(second);
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
      const auto specs =
          plan::model_parameters(run.shape, 1, 0, plan::parts_of_rank(run.parts, run.placement, pp_rank));
      pooled.push_back(plan::rank_gradient_pool(run, specs, plan::rank_layout(run, specs)).has_value());
    }
  };
  expect_as_whole({.dp = 2, .pp = 2}, uneven);
  EXPECT_EQ(pooled, (std::vector<bool>{false, true}));
}

TEST(ShardedGradientsMemory, IsThatOfThePlanWithinTwoPercent) {
  for (const char* strategy : {"optim", "optim_grads", "optim_grads_params"})
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
        engine.parameters.await_values();
        const auto planned = plan::memory_plan(run, 0, engine.context.pipeline().rank(), 0, kernels::instruction_set());
        EXPECT_EQ(planned.gradients, engine.parameters.gradient_bytes());
        EXPECT_EQ(planned.parameters, engine.parameters.value_bytes());
        // Copies of layers that take turns are gone after a step.
        const std::int64_t packed = engine.parameters.pooled_values() ? 0 : planned.packed_weights;
        const auto want =
            static_cast<double>(planned.parameters + planned.gradients + planned.optimizer_state + packed);
        EXPECT_NEAR(static_cast<double>(counter->bytes()), want, 0.02 * want) << strategy << " dp " << layout.dp;
      });
    }
}

/// What a rank asks of its groups, as far as the tests below look at it.
struct Event {
  enum class Kind : std::uint8_t { Gathers, HasGathered, Adds } kind;
  const void* place;  ///< of what is gathered
};
using Events = std::vector<Event>;

/// Writes events down; groups that are split off write into the same list.
class EventWriter final : public comm::Backend {
 public:
  EventWriter(std::shared_ptr<comm::Backend> inner, std::shared_ptr<Events> events)
      : inner_(std::move(inner)), events_(std::move(events)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }
  comm::WorkHandle all_reduce(at::Tensor inout, comm::ReduceOp op) override {
    events_->push_back({Event::Kind::Adds, nullptr});
    return inner_->all_reduce(std::move(inout), op);
  }
  comm::WorkHandle all_gather(at::Tensor out, at::Tensor in) override {
    events_->push_back({Event::Kind::Gathers, out.const_data_ptr()});
    auto gather = std::make_shared<Gather>();
    gather->place = out.const_data_ptr();
    gather->events = events_;
    gather->inner = inner_->all_gather(std::move(out), std::move(in));
    return gather;
  }
  comm::WorkHandle reduce_scatter(at::Tensor out, at::Tensor in, comm::ReduceOp op) override {
    return inner_->reduce_scatter(std::move(out), std::move(in), op);
  }
  comm::WorkHandle broadcast(at::Tensor inout, int root) override { return inner_->broadcast(std::move(inout), root); }
  comm::WorkHandle all_to_all(at::Tensor out, at::Tensor in) override {
    return inner_->all_to_all(std::move(out), std::move(in));
  }
  comm::WorkHandle send(at::Tensor tensor, int to, int tag) override {
    return inner_->send(std::move(tensor), to, tag);
  }
  comm::WorkHandle recv(at::Tensor tensor, int from, int tag) override {
    return inner_->recv(std::move(tensor), from, tag);
  }
  comm::WorkHandle barrier() override { return inner_->barrier(); }
  std::shared_ptr<comm::Backend> split(const std::vector<int>& ranks) override {
    auto part = inner_->split(ranks);
    return part ? std::make_shared<EventWriter>(std::move(part), events_) : nullptr;
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  struct Gather final : comm::Work {
    comm::WorkHandle inner;
    const void* place = nullptr;
    std::shared_ptr<Events> events;
    void wait() override {
      inner->wait();
      events->push_back({Event::Kind::HasGathered, place});
    }
  };
  std::shared_ptr<comm::Backend> inner_;
  std::shared_ptr<Events> events_;
};

using Buckets = std::set<std::size_t>;

/// The buckets that hold a parameter whose name begins as one of `prefixes`.
Buckets buckets_with(const parallel::ParameterStore& store, const std::vector<std::string>& prefixes) {
  Buckets found;
  for (std::size_t b = 0; b < store.layout().buckets.size(); ++b)
    for (const int parameter : store.layout().buckets[b].parameters)
      for (const std::string& prefix : prefixes)
        if (store.all()[static_cast<std::size_t>(parameter)]->spec.name.starts_with(prefix)) found.insert(b);
  return found;
}

/// The bucket whose values begin at `place`; none of anything else that is gathered.
std::optional<std::size_t> bucket_at(const parallel::ParameterStore& store, const at::Tensor& values,
                                     const void* place) {
  for (std::size_t b = 0; b < store.layout().buckets.size(); ++b)
    if (values.const_data_ptr<float>() + store.layout().buckets[b].begin == place) return b;
  return std::nullopt;
}

Buckets of_kind(Event::Kind kind, const Events& events, const parallel::ParameterStore& store,
                const at::Tensor& values) {
  Buckets found;
  for (const Event& event : events)
    if (const auto bucket = bucket_at(store, values, event.place); bucket && event.kind == kind) found.insert(*bucket);
  return found;
}

/// The modules of a forward pass as far as sum number `n` over tp: the embedding ends with one, each layer has one
/// behind its attention and one behind its MLP.
std::vector<std::string> modules_until(int n) {
  std::vector<std::string> modules = {"embedding."};
  for (int layer = 0; 2 * layer < n; ++layer) modules.push_back(concat("decoder.layers.", layer, "."));
  return modules;
}

// Two ranks of tp, so that each module's end shows as a sum among the events.
TEST(ParameterGathering, WaitsForABucketWhenItsFirstModuleRunsAndForNoLaterOne) {
  for (const bool overlap : {true, false}) {
    auto config = config_of({.tp = 2, .dp = 2}, true);
    config.optimizer.bucket_size = 700;
    config.optimizer.overlap_param_gather = overlap;
    const plan::ResolvedRun run = plan::resolve(config);
    comm::run_ranks(run.grid.world_size(), [&](const comm::Group& world) {
      kernels::configure_thread(1);
      const auto events = std::make_shared<Events>();
      Engine engine(run, comm::Group(std::make_shared<EventWriter>(world.backend(), events)), at::kCPU);
      const at::Tensor values = engine.parameters.values();
      const auto& store = engine.parameters;
      const Buckets all = buckets_with(store, {""});
      ASSERT_LT(buckets_with(store, {"embedding."}).size() + 4, all.size());

      events->clear();  // those of building the engine are about other memory
      testing::take_step(run, engine, 0);
      EXPECT_EQ(of_kind(Event::Kind::Gathers, *events, store, values), all);
      EXPECT_EQ(of_kind(Event::Kind::HasGathered, *events, store, values), overlap ? Buckets{} : all);

      events->clear();
      testing::take_step(run, engine, 1);
      Buckets arrived;
      int sums = 0;
      for (const Event& event : *events) {
        if (const auto bucket = bucket_at(store, values, event.place)) {
          if (event.kind == Event::Kind::Gathers) break;  // after the step
          arrived.insert(*bucket);
        }
        if (event.kind != Event::Kind::Adds || sums > 2 * config.model.num_layers) continue;
        const Buckets run_so_far = buckets_with(store, modules_until(sums));
        EXPECT_TRUE(std::ranges::includes(run_so_far, arrived)) << "sum " << sums << ": a bucket too early";
        const std::string last = sums == 0       ? "embedding.word_embeddings"
                                 : sums % 2 == 1 ? concat("decoder.layers.", sums / 2, ".self_attention.linear_proj.w")
                                                 : concat("decoder.layers.", sums / 2 - 1, ".mlp.linear_fc2.w");
        EXPECT_EQ(std::ranges::includes(arrived, buckets_with(store, {last})), overlap) << "sum " << sums;
        ++sums;
      }
      EXPECT_EQ(sums, 2 * config.model.num_layers + 1);
      EXPECT_EQ(arrived, overlap ? all : Buckets{});
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
