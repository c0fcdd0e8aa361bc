#include "megatron/optim/shared_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sin.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "megatron/comm/counting_backend.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/optim/gradient_norm.h"
#include "tests/optim/hand_made_store.h"
#include "tests/testing/tensors.h"

namespace megatron::optim {
namespace {

using megatron::testing::slice_of;

constexpr const char* kWords = "words";

plan::ParameterSpec split(std::string name, std::vector<std::int64_t> shape, int t, int k) {
  const std::int64_t length = shape[0] / t;
  return {.name = std::move(name),
          .shape = std::move(shape),
          .split_dim = 0,
          .pieces = {{.offset = length * k, .length = length}},
          .init = plan::Init::Normal,
          .init_std = 1};
}

plan::ParameterSpec partial(std::string name, std::vector<std::int64_t> shape) {
  return {.name = std::move(name), .shape = std::move(shape), .init = plan::Init::One, .sequence_partial = true};
}

/// Parameters of pipeline rank `stage` of two, or (-1) of the whole model; tensor-parallel rank k of t.
std::vector<plan::ParameterSpec> specs(int stage, int t, int k) {
  std::vector<plan::ParameterSpec> all;
  if (stage != 1) {
    all.push_back(split(kWords, {8, 3}, t, k));
    all.push_back(partial("positions", {5, 3}));
    all.push_back(split("first.weight", {6, 4}, t, k));
    all.push_back(partial("first.bias", {7}));
  }
  if (stage != 0) {
    all.push_back(split("second.weight", {4, 9}, t, k));
    all.push_back(partial("norm.weight", {3}));
    if (stage == 1) {
      all.push_back(split(kWords, {8, 3}, t, k));
      all.back().shared_copy = true;
    }
  }
  return all;
}

parallel::ParameterStore store(int stage, int t, int k, at::ScalarType dtype = at::kDouble) {
  const auto of_rank = specs(stage, t, k);
  return {of_rank, plan::buffer_layout(of_rank, 10), dtype, at::kCPU, 7};
}

std::vector<plan::Shard> whole(const parallel::ParameterStore& parameters) {
  return plan::shards(parameters.layout(), 1, 0);
}

void sum_all(const SharedGradients& shared) {
  shared.sum_within_stages();
  shared.sum_copies();
}

double norm_of(const parallel::ParameterStore& parameters, const comm::Group& group, bool first, NormOrder kind) {
  return testing::norm_over(group, GradientNorm(parameters, whole(parameters), first).part(kind), kind);
}

/// The gradient of the whole model: element i of a parameter.
at::Tensor full_gradient(const plan::ParameterSpec& spec) {
  return (at::arange(spec.size(), at::kDouble) * 1.7 + static_cast<double>(spec.name.size())).sin().view(spec.shape);
}

/// A rank of tp 2 x pp 2 whose gradients add up to the full ones: over tp where the spec says partial, over the two
/// stages for the copies of the words.
struct Rank {
  comm::Group tp, pp;
  parallel::ParameterStore parameters;

  explicit Rank(const comm::Group& world)
      : tp(world.split({{0, 1}, {2, 3}})),
        pp(world.split({{0, 2}, {1, 3}})),
        parameters(store(pp.rank(), 2, tp.rank())) {
    for (const auto& parameter : parameters.all()) {
      const auto& spec = parameter->spec;
      auto gradient = slice_of(full_gradient(spec), spec);
      if (spec.sequence_partial) gradient = gradient * (tp.rank() == 0 ? 0.3 : 0.7);
      if (spec.name == kWords) gradient = gradient * (pp.rank() == 0 ? 1.6 : -0.6);
      parameter->grad.copy_(gradient);
    }
  }
  std::vector<SharedParameter> words(const comm::Group& holders) const { return {{parameters.get(kWords), holders}}; }
};

TEST(SharedGradients, CompletesThoseSplitAlongTheSequenceAndThoseOfTheTiedEmbedding) {
  comm::run_ranks(4, [](const comm::Group& world) {
    const Rank rank(world);
    const auto tp = comm::CountingBackend::wrap(rank.tp),
               words = comm::CountingBackend::wrap(holders_group(rank.pp, {0, 1}));
    sum_all({rank.parameters, whole(rank.parameters), {tp, {}, {}}, rank.words(words)});
    for (const auto& parameter : rank.parameters.all()) {
      const auto& spec = parameter->spec;
      EXPECT_NEAR_TENSOR(parameter->grad, slice_of(full_gradient(spec), spec), 1e-14)
          << spec.name << " of rank " << world.rank();
    }
    for (const auto& group : {tp, words}) {
      const auto& counts = comm::CountingBackend::of(group).counts();
      EXPECT_EQ(counts.size(), 1U);
      EXPECT_EQ(counts.at("all_reduce").calls, 1);
    }
  });
}

TEST(SharedGradients, LeavesWholeGradientsAloneWithoutSequenceParallelism) {
  comm::run_ranks(2, [](const comm::Group&) {
    const auto parameters = store(-1, 1, 0);
    parameters.gradients().fill_(3);
    sum_all({parameters, whole(parameters), {}, {}});
    EXPECT_TRUE((parameters.gradients() == 3).all().item<bool>());
  });
}

TEST(SharedGradients, OfAnExpertAreSummedOverTheRanksThatSplitIt) {
  comm::run_ranks(4, [](const comm::Group& world) {
    const std::vector<plan::ParameterSpec> specs = {
        {.name = "router", .shape = {4, 2}, .heads_partial = true},
        {.name = "adapter", .shape = {4, 2}, .heads_partial = true, .of_expert = true}};
    const parallel::ParameterStore parameters(specs, plan::buffer_layout(specs, 0), at::kDouble, at::kCPU, 7);
    for (const auto& parameter : parameters.all()) parameter->grad.fill_(1 << world.rank());
    const comm::Group slices = world.split({{0, 1}, {2, 3}});
    sum_all({parameters, whole(parameters), {.sequence = {}, .copies = {}, .heads = world, .experts = slices}, {}});
    EXPECT_TRUE((parameters.get("router")->grad == 15).all().item<bool>());
    EXPECT_TRUE((parameters.get("adapter")->grad == (world.rank() < 2 ? 3 : 12)).all().item<bool>());
  });
}

TEST(SharedGradients, TheNormOfTwoByTwoRanksWithATiedCopyIsThatOfOneRank) {
  const auto dense = store(-1, 1, 0);
  double squares = 0, largest = 0;
  for (const auto& parameter : dense.all()) {
    const auto gradient = full_gradient(parameter->spec);
    parameter->grad.copy_(gradient);
    squares += (gradient * gradient).sum().item<double>();
    largest = std::max(largest, gradient.abs().max().item<double>());
  }
  EXPECT_NEAR(norm_of(dense, {}, true, kL2), std::sqrt(squares), 1e-13);
  comm::run_ranks(4, [&](const comm::Group& world) {
    const Rank rank(world);
    sum_all({rank.parameters, whole(rank.parameters), {rank.tp, {}, {}}, rank.words(holders_group(rank.pp, {0, 1}))});
    const bool first = rank.tp.rank() == 0;
    EXPECT_NEAR(norm_of(rank.parameters, world, first, kL2), std::sqrt(squares), 1e-13);
    EXPECT_NEAR(norm_of(rank.parameters, world, first, kInf), largest, 1e-14);
  });
}

TEST(EmbeddingGroup, HoldsTheRanksOfTheFirstAndOfTheLastStageAlone) {
  comm::run_ranks(4, [](const comm::Group& pp) {
    const bool end = pp.rank() == 0 || pp.rank() == 3;
    EXPECT_EQ(holders_group(pp, {0, 3}).size(), end ? 2 : 1);
    EXPECT_EQ(holders_group(pp, {0, 1, 3}).size(), pp.rank() != 2 ? 3 : 1);
    EXPECT_EQ(holders_group(pp, {0}).size(), 1);
  });
}

class Copies : public ::testing::TestWithParam<at::ScalarType> {};

/// Whether check_copies() refuses after `change` has changed the last stage's words.
bool refused(const comm::Group& pp, at::ScalarType dtype, const std::function<void(const at::Tensor&)>& change) {
  const auto parameters = store(pp.rank(), 1, 0, dtype);
  if (pp.rank() == 1) change(parameters.get(kWords)->value.detach());
  try {
    SharedGradients(parameters, whole(parameters), {}, {{parameters.get(kWords), pp}}).check_copies();
    return false;
  } catch (const std::runtime_error& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr(kWords));
    return true;
  }
}

TEST_P(Copies, BeginEqualAndAreRefusedOnEveryHolderWhereABitDiffers) {
  comm::run_ranks(2, [](const comm::Group& pp) {
    EXPECT_FALSE(refused(pp, GetParam(), [](const at::Tensor&) {}));
    EXPECT_TRUE(refused(pp, GetParam(), [](const at::Tensor& x) { x[7][2] = x[7][2] * (1 + 1e-2); }));
    EXPECT_TRUE(refused(pp, GetParam(), [](const at::Tensor& x) { x[3][1] = -x[3][1]; }));
    EXPECT_TRUE(refused(pp, GetParam(), [](const at::Tensor& x) { x.copy_(x.flip(0)); }));
  });
}
INSTANTIATE_TEST_SUITE_P(Dtypes, Copies, ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16));

// The check looks at a million values at a time.
TEST(Copies, ThatDifferInTheFirstOfMoreThanAMillionValuesAreRefused) {
  comm::run_ranks(2, [](const comm::Group& pp) {
    std::vector<plan::ParameterSpec> one = {split(kWords, {1 << 19, 3}, 1, 0)};
    one.front().shared_copy = pp.rank() == 1;
    const parallel::ParameterStore parameters(one, plan::buffer_layout(one, 0), at::kFloat, at::kCPU, 7);
    const SharedGradients shared(parameters, whole(parameters), {}, {{parameters.get(kWords), pp}});
    EXPECT_NO_THROW(shared.check_copies());
    if (pp.rank() == 1) parameters.get(kWords)->value.detach()[0][0] += 1;
    EXPECT_THROW(shared.check_copies(), std::runtime_error) << "rank " << pp.rank();
  });
}

TEST(Copies, AreLeftAsTheyAreByTheCheck) {
  const auto parameters = store(-1, 1, 0);
  const auto before = parameters.values().clone();
  SharedGradients(parameters, whole(parameters), {}, {{parameters.get(kWords), {}}}).check_copies();
  EXPECT_TRUE(at::equal(parameters.values(), before));
}

}  // namespace
}  // namespace megatron::optim
