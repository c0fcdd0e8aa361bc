#include "megatron/parallel/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "tests/testing/tensors.h"

namespace megatron::parallel {
namespace {

using megatron::testing::make_parameter;
using megatron::testing::slice_of;

/// x, W, b, dy of a layer 8 -> 12 and the gradients that autograd gives the dense layer.
struct Dense {
  at::Tensor x = at::randn({3, 2, 8}, at::kDouble), w = at::randn({12, 8}, at::kDouble),
             b = at::randn({12}, at::kDouble);
  at::Tensor dy = at::randn({3, 2, 12}, at::kDouble), y;

  explicit Dense(bool with_bias) {
    for (auto* t : {&x, &w, &b}) t->requires_grad_(true);
    y = at::linear(x, w, with_bias ? b : at::Tensor());
    y.backward(dy);
  }
  at::Tensor leaf() const { return x.detach().clone().requires_grad_(true); }
};

void expect_gradient(const ParameterPtr& parameter, const at::Tensor& full, double times = 1) {
  EXPECT_NEAR_TENSOR(parameter->grad, slice_of(full, parameter->spec) * times, 1e-13) << parameter->spec.name;
}

class Tp : public ::testing::TestWithParam<int> {};

TEST_P(Tp, ColumnParallelLinearMatchesTheDenseLayerForwardAndBackward) {
  const Dense dense(true);
  comm::run_ranks(GetParam(), [&](comm::Group tp) {
    const auto w = make_parameter("w", dense.w, 0, tp.size(), tp.rank());
    const auto b = make_parameter("b", dense.b, 0, tp.size(), tp.rank());
    const ColumnParallelLinear layer(w, b, tp);
    const auto x = dense.leaf();
    const auto y = layer.forward(x);
    EXPECT_NEAR_TENSOR(y, slice_of(dense.y.movedim(2, 0), w->spec).movedim(0, 2), 1e-13);
    y.backward(slice_of(dense.dy.movedim(2, 0), w->spec).movedim(0, 2).contiguous());
    EXPECT_NEAR_TENSOR(x.grad(), dense.x.grad(), 1e-13);
    expect_gradient(w, dense.w.grad());
    expect_gradient(b, dense.b.grad());
    EXPECT_EQ(w->contributions(), 1);
    EXPECT_EQ(b->contributions(), 1);
  });
}

TEST_P(Tp, ColumnParallelLinearGathersItsOutputWhereAskedTo) {
  const Dense dense(true);
  comm::run_ranks(GetParam(), [&](comm::Group tp) {
    const auto w = make_parameter("w", dense.w, 0, tp.size(), tp.rank());
    const auto b = make_parameter("b", dense.b, 0, tp.size(), tp.rank());
    const ColumnParallelLinear layer(w, b, tp, {.gather_output = true});
    const auto x = dense.leaf();
    const auto y = layer.forward(x);
    EXPECT_NEAR_TENSOR(y, dense.y, 1e-13);
    y.backward(dense.dy);
    EXPECT_NEAR_TENSOR(x.grad(), dense.x.grad(), 1e-13);
    expect_gradient(w, dense.w.grad());
    expect_gradient(b, dense.b.grad());
  });
}

TEST_P(Tp, RowParallelLinearMatchesTheDenseLayerFromPartsOfTheInput) {
  const Dense dense(true);
  comm::run_ranks(GetParam(), [&](comm::Group tp) {
    const auto w = make_parameter("w", dense.w, 1, tp.size(), tp.rank());
    const auto b = make_parameter("b", dense.b, -1, tp.size(), tp.rank());
    const RowParallelLinear layer(w, b, tp);
    const auto x = dense.leaf().detach().narrow(2, w->spec.begin(), w->value.size(1)).contiguous().requires_grad_(true);
    const auto y = layer.forward(x);
    EXPECT_NEAR_TENSOR(y, dense.y, 1e-13);
    y.backward(dense.dy);
    EXPECT_NEAR_TENSOR(x.grad(), dense.x.grad().narrow(2, w->spec.begin(), w->value.size(1)), 1e-13);
    expect_gradient(w, dense.w.grad());
    expect_gradient(b, dense.b.grad());
  });
}

TEST_P(Tp, RowParallelLinearSplitsAWholeInputItself) {
  const Dense dense(true);
  comm::run_ranks(GetParam(), [&](comm::Group tp) {
    const auto w = make_parameter("w", dense.w, 1, tp.size(), tp.rank());
    const auto b = make_parameter("b", dense.b, -1, tp.size(), tp.rank());
    const RowParallelLinear layer(w, b, tp, {.input_is_parallel = false});
    const auto x = dense.leaf();
    const auto y = layer.forward(x);
    EXPECT_NEAR_TENSOR(y, dense.y, 1e-13);
    y.backward(dense.dy);
    EXPECT_NEAR_TENSOR(x.grad(), dense.x.grad(), 1e-13);
    expect_gradient(w, dense.w.grad());
  });
}

TEST_P(Tp, SkipBiasAddLeavesBiasAndItsGradientToTheCaller) {
  const Dense dense(false);
  comm::run_ranks(GetParam(), [&](comm::Group tp) {
    const auto b_column = make_parameter("b", dense.b, 0, tp.size(), tp.rank());
    const auto b_row = make_parameter("b", dense.b, -1, tp.size(), tp.rank());
    const ColumnParallelLinear column(make_parameter("w", dense.w, 0, tp.size(), tp.rank()), b_column, tp,
                                      {.gather_output = true, .skip_bias_add = true});
    const RowParallelLinear row(make_parameter("w", dense.w, 1, tp.size(), tp.rank()), b_row, tp,
                                {.input_is_parallel = false, .skip_bias_add = true});
    for (const auto& y : {column.forward(dense.leaf()), row.forward(dense.leaf())}) {
      EXPECT_NEAR_TENSOR(y, dense.y, 1e-13);
      y.backward(dense.dy);
    }
    EXPECT_EQ(b_column->contributions() + b_row->contributions(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Tp, ::testing::Values(1, 2, 4));

TEST(Linear, AddsTheSecondMicrobatchToTheFirstAndOverwritesAfterClearing) {
  const Dense dense(true);
  const auto w = make_parameter("w", dense.w, 0, 1, 0), b = make_parameter("b", dense.b, 0, 1, 0);
  const ColumnParallelLinear layer(w, b, {});
  for (const int times : {1, 2}) {
    layer.forward(dense.leaf()).backward(dense.dy);
    expect_gradient(w, dense.w.grad(), times);
    expect_gradient(b, dense.b.grad(), times);
  }
  w->clear_gradient();
  layer.forward(dense.leaf()).backward(dense.dy);
  expect_gradient(w, dense.w.grad(), 1);
  expect_gradient(b, dense.b.grad(), 3);
}

TEST(Linear, PutsOffItsWeightGradientWhereTheQueueDefersAndAddsItInAnyOrder) {
  const Dense dense(true);
  const auto w = make_parameter("w", dense.w, 0, 1, 0), b = make_parameter("b", dense.b, 0, 1, 0);
  w->queue = std::make_shared<GradientQueue>();
  const ColumnParallelLinear layer(w, b, {});
  w->queue->defer(true);
  std::vector<std::vector<GradientQueue::Work>> microbatches;
  for (int k = 0; k < 2; ++k) {
    const auto x = dense.leaf();
    layer.forward(x).backward(dense.dy * (k + 1));
    EXPECT_NEAR_TENSOR(x.grad(), dense.x.grad() * (k + 1), 1e-13);
    microbatches.push_back(w->queue->take());
    EXPECT_EQ(microbatches.back().size(), 1U);
  }
  EXPECT_EQ(w->contributions() + b->contributions(), 0);
  run_pieces(std::move(microbatches[1]));
  expect_gradient(w, dense.w.grad(), 2);
  run_pieces(std::move(microbatches[0]));
  expect_gradient(w, dense.w.grad(), 3);
  expect_gradient(b, dense.b.grad(), 3);
  EXPECT_EQ(w->contributions(), 2);
}

TEST(Linear, TakesItsRemadeInputForTheWeightGradient) {
  const Dense dense(true);
  const auto w = make_parameter("w", dense.w, 0, 1, 0), b = make_parameter("b", dense.b, 0, 1, 0);
  auto x = dense.leaf();
  int calls = 0;
  const auto y = ColumnParallelLinear(w, b, {}).forward(x, [&] {
    ++calls;
    return dense.x.detach();
  });
  EXPECT_EQ(calls, 0);
  x.detach().zero_();  // a kept input would now give a zero gradient
  y.backward(dense.dy);
  EXPECT_EQ(calls, 1);
  expect_gradient(w, dense.w.grad());
}

}  // namespace
}  // namespace megatron::parallel
