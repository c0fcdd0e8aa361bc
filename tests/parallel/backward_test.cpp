#include "megatron/parallel/backward.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
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

/// A weak handle to x's memory: says when it is gone.
c10::weak_intrusive_ptr<c10::StorageImpl> memory_of(const at::Tensor& x) {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(x.storage().getWeakStorageImpl());
}

TEST(GraphRoot, GoesBackwardFromAnOutputWhoseMemoryIsGone) {
  const auto data = at::tensor({1.0, 2.0});
  GraphLeaf leaf(data);
  auto y = triple(leaf.take(), std::make_shared<int>());
  GraphRoot root(y);
  const auto output = memory_of(y);
  EXPECT_EQ(output.use_count(), 1U);
  y.reset();
  EXPECT_EQ(output.use_count(), 0U);
  root.backward(at::tensor({5.0, 7.0}));
  EXPECT_TRUE(at::equal(leaf.take_gradient(), at::tensor({15.0, 21.0})));
}

TEST(GraphRoot, HoldsNothingOnceItHasGoneBackward) {
  const auto token = std::make_shared<int>();
  GraphLeaf leaf(at::ones({2}));
  auto x = leaf.take();
  const auto input = memory_of(x);
  GraphRoot root(triple(x, token));
  x.reset();
  EXPECT_EQ(input.use_count(), 0U);  // the operator does not keep it, and nor does the leaf
  EXPECT_EQ(token.use_count(), 2);
  auto gradient = at::ones({2});
  root.backward(gradient);
  EXPECT_EQ(token.use_count(), 1);
  EXPECT_EQ(gradient.use_count(), 1U);
  EXPECT_TRUE(leaf.take_gradient().defined());
  EXPECT_FALSE(leaf.take_gradient().defined());
  EXPECT_THROW(root.backward(gradient), std::logic_error);
}

TEST(GraphRoot, GoesThroughGraphsOfWhichAnotherBackwardPassIsAPart) {
  // As a recomputed part does: its backward makes its own graph and goes backward through that.
  const auto again = [](const at::Tensor& x) {
    const auto y = without_autograd([&] { return x.detach() * 3; });
    return with_backward({x}, y, [x = x.detach()](const std::vector<at::Tensor>& grads) {
      const c10::AutoGradMode on(true);
      GraphLeaf inner(x);
      GraphRoot(triple(inner.take(), std::make_shared<int>())).backward(grads[0]);
      return std::vector<at::Tensor>{inner.take_gradient()};
    });
  };
  GraphLeaf leaf(at::ones({2}));
  auto y = leaf.take();
  for (int k = 0; k < 100; ++k) y = again(y) * (1.0 / 3);
  GraphRoot(y).backward(at::ones({2}));
  EXPECT_NEAR(leaf.take_gradient()[0].item<double>(), 1, 1e-4);
}

TEST(GraphRoot, NeedsAnOutputThatWasRecorded) {
  const auto y = without_autograd([] { return GraphLeaf(at::ones({2})).take(); });
  EXPECT_FALSE(y.requires_grad());
  EXPECT_THROW(GraphRoot(y).backward(at::ones({2})), std::logic_error);
}

}  // namespace
}  // namespace megatron::parallel
