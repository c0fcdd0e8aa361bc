#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/optim/gradient_norm.h"
#include "tests/optim/hand_made_store.h"
#include "tests/testing/tensors.h"

namespace megatron::optim {
namespace {

// The gradient of the whole model, dense: element i of parameter p.
at::Tensor full_gradient(const plan::ParameterSpec& spec) {
  return (at::arange(spec.size(), at::kDouble) * 1.7 + static_cast<double>(spec.name.size())).sin().view(spec.shape);
}

double norm_of(const parallel::ParameterStore& store, const comm::Group& tp, NormOrder kind) {
  const GradientNorm norm(store, plan::shards(store.layout(), 1, 0), tp.rank() == 0);
  return testing::norm_over(tp, norm.part(kind), kind);
}

class GradientNormTest : public ::testing::TestWithParam<int> {};

TEST_P(GradientNormTest, EqualsThatOfTheDenseModelWithWholeParametersCountedOnce) {
  double squares = 0, largest = 0, magnitudes = 0, cubes = 0;
  for (const auto& spec : testing::specs()) {
    const auto gradient = full_gradient(spec);
    squares += (gradient * gradient).sum().item<double>();
    magnitudes += gradient.abs().sum().item<double>();
    cubes += (gradient * gradient * gradient).abs().sum().item<double>();
    largest = std::max(largest, gradient.abs().max().item<double>());
  }
  comm::run_ranks(GetParam(), [&](const comm::Group& tp) {
    const auto store = testing::store(12, at::kDouble, tp.size(), tp.rank());
    for (const auto& parameter : store.all()) {
      const auto& spec = parameter->spec;
      parameter->grad.copy_(megatron::testing::slice_of(full_gradient(spec), spec));
    }
    EXPECT_NEAR(norm_of(store, tp, kL2), std::sqrt(squares), 1e-13) << "rank " << tp.rank();
    EXPECT_DOUBLE_EQ(norm_of(store, tp, kInf), largest) << "rank " << tp.rank();
    EXPECT_NEAR(norm_of(store, tp, 1), magnitudes, 1e-12) << "rank " << tp.rank();
    EXPECT_NEAR(norm_of(store, tp, 3), std::cbrt(cubes), 1e-12) << "rank " << tp.rank();
  });
}

TEST_P(GradientNormTest, IsNotFiniteOnAnyRankWhenOneGradientOfOneRankIsNot) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()})
    comm::run_ranks(GetParam(), [&](const comm::Group& tp) {
      const auto store = testing::store(0, at::kDouble, tp.size(), tp.rank());
      for (const auto& parameter : store.all()) parameter->grad.fill_(1);
      if (tp.rank() == tp.size() - 1) store.get("first.weight")->grad[0][0] = bad;
      EXPECT_FALSE(std::isfinite(norm_of(store, tp, kL2))) << "rank " << tp.rank();
      EXPECT_FALSE(std::isfinite(norm_of(store, tp, kInf))) << "rank " << tp.rank();
      EXPECT_FALSE(std::isfinite(norm_of(store, tp, 1.5))) << "rank " << tp.rank();
    });
}
INSTANTIATE_TEST_SUITE_P(Tp, GradientNormTest, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace megatron::optim
