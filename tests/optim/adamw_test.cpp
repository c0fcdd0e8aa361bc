#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "megatron/optim/optimizer.h"
#include "tests/optim/hand_made_store.h"

namespace megatron::optim {
namespace {

// Loshchilov & Hutter 2019, algorithm 2, parameter by parameter in float64, as torch.optim.AdamW writes it.
class PlainAdamW {
 public:
  PlainAdamW(const parallel::ParameterStore& store, AdamWOptions options) : options_(options) {
    for (const auto& parameter : store.all()) {
      const auto value = parameter->value.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
      states_[parameter->spec.name] = {value, at::zeros_like(value), at::zeros_like(value)};
    }
  }
  void step(const parallel::ParameterStore& store, double lr, double scale) {
    ++step_;
    for (const auto& parameter : store.all()) {
      auto& [value, first, second] = states_.at(parameter->spec.name);
      const auto gradient = parameter->grad.to(at::kDouble) * scale;
      if (parameter->spec.weight_decay) value = value * (1 - lr * options_.weight_decay);
      first = first * options_.beta1 + gradient * (1 - options_.beta1);
      second = second * options_.beta2 + gradient * gradient * (1 - options_.beta2);
      const auto root = (second / (1 - std::pow(options_.beta2, step_))).sqrt() + options_.eps;
      value = value - lr / (1 - std::pow(options_.beta1, step_)) * first / root;
    }
  }
  const at::Tensor& value(const std::string& name) const { return std::get<0>(states_.at(name)); }

 private:
  AdamWOptions options_;
  int step_ = 0;
  std::map<std::string, std::tuple<at::Tensor, at::Tensor, at::Tensor>> states_;
};

class AdamWTest : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(AdamWTest, FollowsThePublishedAlgorithmOverTheFlatBuffers) {
  const auto store = testing::store(12, GetParam());
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  AdamW optimizer(store, options);
  PlainAdamW truth(store, options);
  for (int step = 1; step <= 6; ++step) {
    for (const auto& parameter : store.all())
      parameter->grad.copy_(
          (at::arange(parameter->grad.numel(), at::kDouble) + 0.3 * step).cos().view(parameter->grad.sizes()));
    const double learning_rate = 0.01 * step;
    optimizer.step(learning_rate, 0.25);
    truth.step(store, learning_rate, 0.25);
  }
  EXPECT_EQ(optimizer.steps(), 6);
  for (const auto& parameter : store.all()) {
    const double error =
        (parameter->value.detach().to(at::kDouble) - truth.value(parameter->spec.name)).abs().max().item<double>();
    EXPECT_LE(error, GetParam() == at::kDouble ? 1e-14 : 2e-6) << parameter->spec.name;
  }
}

TEST_P(AdamWTest, GoesOnFromASavedStateAsIfItHadNotStopped) {
  const auto straight = testing::store(0, GetParam()), resumed = testing::store(0, GetParam());
  straight.gradients().fill_(0.5);
  resumed.gradients().fill_(0.5);
  AdamW one(straight, {}), before(resumed, {}), after(resumed, {});
  one.step(0.1, 1);
  one.step(0.1, 1);
  before.step(0.1, 1);
  after.exp_avg().copy_(before.exp_avg());
  after.exp_avg_sq().copy_(before.exp_avg_sq());
  after.set_steps(before.steps());
  after.step(0.1, 1);
  EXPECT_TRUE(straight.values().equal(resumed.values()));
}
INSTANTIATE_TEST_SUITE_P(Dtypes, AdamWTest, ::testing::Values(at::kFloat, at::kDouble),
                         [](const auto& test) { return test.param == at::kFloat ? "fp32" : "fp64"; });

}  // namespace
}  // namespace megatron::optim
