#include "megatron/parallel/backward.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>

namespace megatron::parallel {
namespace {

/// y = 3 x, with `token` captured to see how long the closure lives.
at::Tensor triple(const at::Tensor& x, const std::shared_ptr<int>& token) {
  const auto y = without_autograd([&] { return x.detach() * 3; });
  return with_backward(
      {x}, y, [token](const std::vector<at::Tensor>& grads) -> std::vector<at::Tensor> { return {grads[0] * 3}; });
}

TEST(WithBackward, DifferentiatesByTheClosureThroughAutogradOperators) {
  auto x = at::tensor({1.0, 2.0}).requires_grad_(true);
  const auto token = std::make_shared<int>();
  (triple(x * x, token)).sum().backward();
  EXPECT_EQ(x.grad()[0].item<double>(), 6);
  EXPECT_EQ(x.grad()[1].item<double>(), 12);
}

TEST(WithBackward, ReleasesWhatTheClosureHeldAsSoonAsItHasRun) {
  auto x = at::ones({2}).requires_grad_(true);
  const auto token = std::make_shared<int>();
  const auto y = triple(x, token).sum();
  EXPECT_EQ(token.use_count(), 2);
  y.backward();
  EXPECT_EQ(token.use_count(), 1);  // the graph of y is still there
}

TEST(WithBackward, DropsTheClosureWhereNothingIsRecorded) {
  const auto token = std::make_shared<int>();
  const auto no_gradient_needed = triple(at::ones({2}), token);
  EXPECT_EQ(token.use_count(), 1);
  auto x = at::ones({2}).requires_grad_(true);
  const auto off = without_autograd([&] { return triple(x, token); });
  EXPECT_EQ(token.use_count(), 1);
  EXPECT_FALSE(no_gradient_needed.requires_grad() || off.requires_grad());
}

TEST(WithBackward, RefusesToGoBackTwice) {
  auto x = at::ones({2}).requires_grad_(true);
  const auto y = triple(x, std::make_shared<int>()).sum();
  y.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(y.backward(), std::logic_error);
}

TEST(WithBackward, GivesUndefinedGradientsForOutputsThatNothingUsed) {
  auto x = at::ones({2}).requires_grad_(true);
  const auto outputs = with_backward({x}, {x.detach() * 1, x.detach() * 2}, [](const std::vector<at::Tensor>& grads) {
    EXPECT_FALSE(grads[0].defined());
    return std::vector<at::Tensor>{grads[1] * 2};
  });
  outputs[1].sum().backward();
  EXPECT_EQ(x.grad()[0].item<double>(), 2);
}

}  // namespace
}  // namespace megatron::parallel
