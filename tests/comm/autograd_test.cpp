#include "megatron/comm/autograd.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "megatron/comm/threads/local_backend.h"

// Each collective stands in a small network whose dense form, in doubles, gives the outputs and the gradients.
namespace megatron::comm {
namespace {

at::Tensor random(std::initializer_list<std::int64_t> shape, double phase) {
  std::int64_t size = 1;
  for (const auto n : shape) size *= n;
  return at::arange(size, at::kDouble).mul_(0.7).add_(phase).sin_().view(at::IntArrayRef(shape.begin(), shape.size()));
}

at::Tensor part(const at::Tensor& full, const Group& g, std::int64_t dim) {
  return full.chunk(g.size(), dim)[static_cast<std::size_t>(g.rank())].contiguous();
}

at::Tensor leaf(const at::Tensor& t) { return t.clone().requires_grad_(); }

class Autograd : public testing::TestWithParam<int> {};

TEST_P(Autograd, CopyAndReduceMakeATwoLayerNetworkSplitByItsHiddenUnits) {
  const at::Tensor x = random({3, 6}, 0), a = random({8, 6}, 1), b = random({5, 8}, 2), dy = random({3, 5}, 3);
  const at::Tensor x0 = leaf(x), a0 = leaf(a), b0 = leaf(b);
  const at::Tensor y0 = at::matmul(at::tanh(at::matmul(x0, a0.t())), b0.t());
  y0.backward(dy);
  run_ranks(GetParam(), [&](Group g) {
    const at::Tensor xk = leaf(x), ak = leaf(part(a, g, 0)), bk = leaf(part(b, g, 1));
    const at::Tensor h = at::tanh(at::matmul(copy_to_group(xk, g), ak.t()));
    const at::Tensor y = reduce_from_group(at::matmul(h, bk.t()), g);
    y.backward(dy);
    EXPECT_TRUE(at::allclose(y, y0, 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(xk.grad(), x0.grad(), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(ak.grad(), part(a0.grad(), g, 0), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(bk.grad(), part(b0.grad(), g, 1), 1e-12, 1e-12));
  });
}

TEST_P(Autograd, GatherGivesTheFullTensorAndEachRankItsPartOfTheGradient) {
  for (const std::int64_t dim : {0, 1, -1}) {
    const at::Tensor x = random({8, 8, 8}, 4), dy = random({8, 8, 8}, 5);
    const at::Tensor x0 = leaf(x);
    x0.square().backward(dy);
    run_ranks(GetParam(), [&](Group g) {
      const at::Tensor xk = leaf(part(x, g, dim));
      const at::Tensor y = gather_from_group(xk, g, dim).square();
      y.backward(dy);
      EXPECT_TRUE(at::allclose(y, x.square(), 1e-12, 1e-12));
      EXPECT_TRUE(at::allclose(xk.grad(), part(x0.grad(), g, dim), 1e-12, 1e-12)) << "dim " << dim;
    });
  }
}

TEST_P(Autograd, ScatterGivesEachRankItsPartAndGathersTheGradient) {
  for (const std::int64_t dim : {0, 1, -1}) {
    const at::Tensor x = random({8, 8, 8}, 6), dy = random({8, 8, 8}, 7);
    const at::Tensor x0 = leaf(x);
    x0.square().backward(dy);
    run_ranks(GetParam(), [&](Group g) {
      const at::Tensor xk = leaf(x);
      const at::Tensor y = scatter_to_group(xk, g, dim).square();
      y.backward(part(dy, g, dim));
      EXPECT_TRUE(at::allclose(y, part(x.square(), g, dim), 1e-12, 1e-12));
      EXPECT_TRUE(at::allclose(xk.grad(), x0.grad(), 1e-12, 1e-12)) << "dim " << dim;
    });
  }
}

TEST_P(Autograd, ReduceLeavesItsInputAsItWas) {
  run_ranks(GetParam(), [&](Group g) {
    const at::Tensor x = at::full({4}, g.rank() + 1.0, at::kDouble);
    reduce_from_group(x, g);
    EXPECT_TRUE(x.equal(at::full({4}, g.rank() + 1.0, at::kDouble)));
  });
}

TEST_P(Autograd, CopyLeavesAGradientThatOthersShareAsItWas) {
  run_ranks(GetParam(), [&](Group g) {
    const at::Tensor x = leaf(at::ones({4}, at::kDouble)), dy = at::ones({4}, at::kDouble);
    copy_to_group(x, g).backward(dy);
    EXPECT_TRUE(dy.equal(at::ones({4}, at::kDouble)));
    EXPECT_TRUE(x.grad().equal(at::full({4}, g.size(), at::kDouble)));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Autograd, testing::Values(1, 2, 4));

TEST(Autograd, RefusesADimensionThatDoesNotDivide) {
  run_ranks(2, [](Group g) {
    EXPECT_THROW(scatter_to_group(at::ones({3, 5}), g, 0), std::invalid_argument);
    EXPECT_THROW(gather_from_group(at::ones({3, 5}), g, 2), std::invalid_argument);
  });
}

}  // namespace
}  // namespace megatron::comm
