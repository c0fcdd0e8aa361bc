#include "megatron/pipeline/run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/base/ranges.h"
#include "megatron/comm/counting_backend.h"
#include "megatron/comm/processes/gloo_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "tests/pipeline/toy.h"

namespace megatron::pipeline {
namespace {

using testing::kHidden;
using testing::ShapeOf;

Link::Options options_of(const ShapeOf& shape) {
  return {.shape = shape(0), .tensor = at::TensorOptions().dtype(at::kDouble)};
}

// Runs `program` on the ranks of `pp` and compares losses and gradients with autograd's over the whole model.
void expect_truth(const schedule::Program& program, const comm::Group& pp, const comm::Group& tp, const ShapeOf& shape,
                  const Link::Options& options) {
  const int rank = pp.rank();
  const auto& placement = program.placement;
  testing::ToyRank mine(placement, rank, shape);
  Link link(placement, pp, tp, options);
  std::vector<int> reduced;
  const Result result =
      run(program, rank, mine.pointers, link,
          {.weight_gradients = mine.queue.get(), .reduce_gradients = [&](int stage) { reduced.push_back(stage); }});
  const testing::ToyTruth truth(placement.num_stages(), program.num_microbatches, shape);
  for (std::size_t k = 0; k < mine.stages.size(); ++k) {
    const int stage = placement.stages_of(rank)[k];
    EXPECT_NEAR_TENSOR(mine.stages[k]->weight().grad, truth.weights[static_cast<std::size_t>(stage)].grad(), 1e-13)
        << "stage " << stage;
    EXPECT_EQ(mine.stages[k]->weight().contributions(), program.num_microbatches);
  }
  std::sort(reduced.begin(), reduced.end());
  EXPECT_EQ(reduced, placement.stages_of(rank));
  if (rank != placement.rank_of(placement.num_stages() - 1)) {
    EXPECT_TRUE(result.loss_sums.empty());
    EXPECT_EQ(result.count, 0);
    return;
  }
  EXPECT_EQ(result.count, truth.count);
  ASSERT_EQ(result.loss_sums.size(), truth.losses.size());
  for (std::size_t m = 0; m < truth.losses.size(); ++m) {
    EXPECT_NEAR(result.loss_sums[m].item<double>(), truth.losses[m], 1e-12);
    EXPECT_FALSE(result.loss_sums[m].requires_grad()) << "the loss holds a graph";
  }
}

TEST(Run, GivesTheLossesAndGradientsOfTheWholeModelInEverySchedule) {
  const auto shape = testing::fixed_shape();
  for (const auto& [name, program] : testing::cases()) {
    SCOPED_TRACE(name);
    comm::run_ranks(program.placement.num_ranks(),
                    [&, &p = program](const comm::Group& pp) { expect_truth(p, pp, {}, shape, options_of(shape)); });
  }
}

TEST(Run, GivesTheSameOverGloo) {
  const auto shape = testing::fixed_shape();
  for (const auto& [name, program] : testing::cases()) {
    if (program.num_microbatches != 3 || program.placement.num_ranks() > 3) continue;
    SCOPED_TRACE(name);
    comm::run_gloo_ranks(
        program.placement.num_ranks(),
        [&, &p = program](const comm::Group& pp) { expect_truth(p, pp, {}, shape, options_of(shape)); }, {});
  }
}

TEST(Run, TakesMicrobatchesOfDifferentLengths) {
  const ShapeOf shape = [](int m) { return std::vector<std::int64_t>{1 + m % 3, 2 - m % 2, kHidden}; };
  for (const auto& [name, program] : testing::cases()) {
    if (program.num_microbatches < 2) continue;
    SCOPED_TRACE(name);
    comm::run_ranks(program.placement.num_ranks(), [&, &p = program](const comm::Group& pp) {
      auto options = options_of(shape);
      options.shapes_vary = true;
      expect_truth(p, pp, {}, shape, options);
    });
  }
}

TEST(Run, SendsAnEqualShareFromEachTensorParallelRankAndGathersIt) {
  const auto shape = testing::fixed_shape();
  for (const auto& [name, program] : testing::cases()) {
    const int p = program.placement.num_ranks();
    if (p > 2 || program.num_microbatches > 3) continue;
    SCOPED_TRACE(name);
    comm::run_ranks(2 * p, [&, &program_ = program](const comm::Group& world) {
      std::vector<std::vector<int>> tp_groups, pp_groups(2);
      for (int k = 0; k < p; ++k) tp_groups.push_back({2 * k, 2 * k + 1});
      for (int r = 0; r < 2 * p; ++r) pp_groups[static_cast<std::size_t>(r % 2)].push_back(r);
      const auto tp = world.split(tp_groups), pp = world.split(pp_groups);
      auto options = options_of(shape);
      options.scatter_gather = true;
      expect_truth(program_, pp, tp, shape, options);
    });
  }
}

TEST(Link, SendsAShareOfTheBytesWhereItScattersAndAllOfThemWhereItDoesNot) {
  for (const bool scatter : {false, true}) {
    comm::run_ranks(4, [&](const comm::Group& world) {
      const auto tp = world.split({{0, 1}, {2, 3}});
      const auto pp = comm::CountingBackend::wrap(world.split({{0, 2}, {1, 3}}));
      const std::vector<std::int64_t> shape{3, 2, kHidden};
      Link link(schedule::Placement::looped(2, 1), pp, tp,
                {.shape = shape, .tensor = at::TensorOptions().dtype(at::kDouble), .scatter_gather = scatter});
      auto& counter = comm::CountingBackend::of(pp);
      counter.reset();
      const auto x = testing::toy_input(0, shape);
      if (pp.rank() == 0) {
        auto message = link.post_send(x, 1);
        Link::wait_sent(message);
        EXPECT_FALSE(message.tensor.defined());
        EXPECT_EQ(counter.count("send").bytes, x.numel() * 8 / (scatter ? 2 : 1));
      } else {
        auto message = link.post_recv(0, 0);
        EXPECT_TRUE(link.wait_received(message, 0).equal(x));
        EXPECT_EQ(counter.count("recv").bytes, x.numel() * 8 / (scatter ? 2 : 1));
      }
    });
  }
}

TEST(Run, EvaluatesWithoutRecordingAnything) {
  const auto shape = testing::fixed_shape();
  for (const int chunks : {1, 2}) {
    const auto program = schedule::insert_communication(
        schedule::forward_only({.num_ranks = 3, .num_chunks = chunks, .num_microbatches = 4}),
        schedule::Communication::Overlapped);
    const testing::ToyTruth truth(program.placement.num_stages(), 4, shape);
    comm::run_ranks(3, [&](const comm::Group& pp) {
      testing::ToyRank mine(program.placement, pp.rank(), shape);
      Link link(program.placement, pp, {}, options_of(shape));
      const Result result = run(program, pp.rank(), mine.pointers, link);
      for (const auto& stage : mine.stages) EXPECT_EQ(stage->weight().contributions(), 0);
      for (std::size_t m = 0; m < result.loss_sums.size(); ++m)
        EXPECT_NEAR(result.loss_sums[m].item<double>(), truth.losses[m], 1e-12);
      EXPECT_EQ(result.loss_sums.size(), pp.rank() == 2 ? 4U : 0U);
    });
  }
}

TEST(Run, HandsOverDirectlyWhereNeighbouringStagesAreOnOneRank) {
  // All stages on one rank: no link is needed.
  schedule::Program program;
  program.placement = schedule::Placement({0, 0, 0});
  program.num_microbatches = 2;
  program.ranks.resize(1);
  for (int m = 0; m < 2; ++m) {
    for (int s = 0; s < 3; ++s) program.ranks[0].push_back({schedule::Kind::Forward, s, m});
    for (int s = 2; s >= 0; --s) program.ranks[0].push_back({schedule::Kind::Backward, s, m});
  }
  program = schedule::insert_gradient_reduction(program);
  const auto shape = testing::fixed_shape();
  expect_truth(program, {}, {}, shape, options_of(shape));
}

// What a profiler is told: an operation of the program each, one after the other, by the names of traces.
TEST(Run, DrawsARangeForEachOperationWhereAProfilerListens) {
  schedule::Program program;
  program.num_microbatches = 1;
  program.ranks = {{{schedule::Kind::Forward, 0, 0}, {schedule::Kind::Backward, 0, 0}}};
  program = schedule::insert_gradient_reduction(program);
  static std::string told;
  static constexpr RangeHooks hooks{.begin = [](const char* name) { told.append("<").append(name); },
                                    .end = [] { told += '>'; }};
  testing::ToyRank mine(program.placement, 0, testing::fixed_shape());
  Link link;
  run(program, 0, mine.pointers, link, {});
  EXPECT_EQ(told, "");
  range_hooks = &hooks;
  run(program, 0, mine.pointers, link, {});
  range_hooks = nullptr;
  EXPECT_EQ(told, "<F0.0><B0.0><R0.0>");
}

TEST(Run, RefusesAProgramThatDoesNotFit) {
  const auto shape = testing::fixed_shape();
  schedule::Program program;
  program.num_microbatches = 1;
  program.ranks = {{{schedule::Kind::BackwardInput, 0, 0}}};
  testing::ToyRank mine(program.placement, 0, shape);
  Link link;
  EXPECT_THROW(run(program, 0, mine.pointers, link, {}), std::logic_error);
  EXPECT_THROW(run(program, 1, mine.pointers, link, {}), std::logic_error);
  EXPECT_THROW(run(program, 0, {}, link, {}), std::logic_error);
}

}  // namespace
}  // namespace megatron::pipeline
