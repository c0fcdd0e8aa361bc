#include "megatron/parallel/magnitude.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/parallel/linear.h"
#include "tests/testing/tensors.h"

namespace megatron::parallel {
namespace {

using megatron::testing::make_parameter;
using megatron::testing::slice_of;

constexpr double kScale = 1.5, kDropout = 0.25;
constexpr std::int64_t kInputs = 8, kRank = 3;

/// A layer 8 -> 12 of two groups of six outputs, of which the first three and the two behind them are parts, and what
/// autograd gives it by the formula of PEFT (DoraLinearVariant, DoraLinearLayer), written out.
struct DenseMagnitudes {
  struct Part {
    plan::ProjectionSlice outputs;
    at::Tensor a = at::randn({kRank, kInputs}, at::kDouble), b, m;
    std::uint64_t key;

    Part(const plan::ProjectionSlice& of, std::uint64_t dropout_key)
        : outputs(of),
          b(at::randn({of.outputs(), kRank}, at::kDouble)),
          m(at::randn({of.outputs()}, at::kDouble)),
          key(dropout_key) {
      for (at::Tensor* t : {&a, &b, &m}) t->requires_grad_(true);
    }
  };
  at::Tensor x = at::randn({4, 2, kInputs}, at::kDouble).requires_grad_(true),
             w = at::randn({12, kInputs}, at::kDouble), bias = at::randn({12}, at::kDouble),
             dy = at::randn({4, 2, 12}, at::kDouble), samples, y;
  std::vector<Part> parts;

  /// `whole`: the parts are one, of all outputs, as of a row-parallel layer.
  DenseMagnitudes(bool drops, bool whole) {
    if (drops) samples = at::arange(7, 9, at::kLong);
    if (whole) {
      parts.emplace_back(plan::ProjectionSlice{"o_proj", 1, 12, 0, 12}, 11);
    } else {
      parts.emplace_back(plan::ProjectionSlice{"q_proj", 2, 6, 0, 3}, 11);
      parts.emplace_back(plan::ProjectionSlice{"k_proj", 2, 6, 3, 2}, 12);
    }
    y = at::linear(x, w) + bias;
    for (const Part& part : parts) {
      std::vector<at::Tensor> numbers;
      for (std::int64_t g = 0; g < part.outputs.groups; ++g)
        numbers.push_back(at::arange(part.outputs.length, at::kLong) + g * part.outputs.group_outputs +
                          part.outputs.offset);
      const at::Tensor rows = at::cat(numbers), own = w.index_select(0, rows);
      const at::Tensor norm = (own + at::matmul(part.b, part.a) * kScale).square().sum(1).sqrt().detach(),
                       g = part.m / norm;
      at::Tensor of = at::linear(x, own);
      if (drops) {
        const at::Tensor in = x * kernels::dropout_mask(dropout_of(part), 4, 2, kInputs, at::kDouble, at::kCPU);
        of = of + at::linear(in, own) * (g - 1) + at::linear(at::linear(in, part.a), part.b) * g * kScale;
      } else {
        of = (of + at::linear(at::linear(x, part.a), part.b) * kScale) * g;
      }
      y = y.index_copy(2, rows, of + bias.index_select(0, rows));
    }
    y.backward(dy);
  }
  kernels::Dropout dropout_of(const Part& part) const {
    return {.p = kDropout, .key = part.key, .sample_ids = samples, .features = kInputs};
  }
  at::Tensor leaf() const { return x.detach().clone().requires_grad_(true); }

  /// Rank k of t of the adapters, split as a column-parallel layer or, `row`, a row-parallel one.
  std::shared_ptr<const Adapter> adapter(bool row, const comm::Group& tp, std::vector<Adapter::Part>& kept) const {
    const int t = tp.size(), k = tp.rank();
    for (const Part& part : parts) {
      plan::ProjectionSlice own = part.outputs;
      if (!row) own.groups /= t;
      kept.push_back({own, make_parameter("a", part.a, row ? 1 : -1, t, k),
                      make_parameter("b", part.b, row ? -1 : 0, t, k), part.key,
                      make_parameter("m", part.m, row ? -1 : 0, t, k)});
    }
    return std::make_shared<const Adapter>(kept, kScale, kDropout, kInputs, row ? kInputs / t * k : 0,
                                           plan::SequenceShare{});
  }
  void expect_gradients(const std::vector<Adapter::Part>& got, const comm::Group& tp) const {
    for (std::size_t i = 0; i < parts.size(); ++i)
      for (const auto& [parameter, full] :
           {std::pair{got[i].a, parts[i].a}, {got[i].b, parts[i].b}, {got[i].magnitude, parts[i].m}}) {
        if (parameter->spec.replicated()) tp.all_reduce(parameter->grad);  // of parts, as SharedGradients does
        EXPECT_NEAR_TENSOR(parameter->grad, slice_of(full.grad(), parameter->spec), 1e-12)
            << parameter->spec.name << " of part " << i;
        EXPECT_EQ(parameter->contributions(), 1);
      }
  }
};

ParameterPtr frozen(ParameterPtr parameter) {
  parameter->grad = at::Tensor();
  return parameter;
}

class Magnitudes : public ::testing::TestWithParam<std::tuple<int, bool, bool>> {
 protected:
  int tp_ = std::get<0>(GetParam());
  bool drops_ = std::get<1>(GetParam()), sp_ = std::get<2>(GetParam());
};

TEST_P(Magnitudes, OfAColumnParallelLayerAreThoseOfTheFormulaForwardAndBackward) {
  const DenseMagnitudes dense(drops_, false);
  comm::run_ranks(tp_, [&](comm::Group tp) {
    const auto w = frozen(make_parameter("w", dense.w, 0, tp.size(), tp.rank())),
               bias = frozen(make_parameter("bias", dense.bias, 0, tp.size(), tp.rank()));
    ColumnParallelLinear layer(w, bias, tp, {.sequence_parallel = sp_});
    std::vector<Adapter::Part> parts;
    layer.adapt(dense.adapter(false, tp, parts));
    const std::int64_t s = sp_ ? 4 / tp.size() : 4;
    const auto x = dense.leaf().detach().narrow(0, sp_ ? s * tp.rank() : 0, s).clone().requires_grad_(true);
    const auto y = layer.forward(x, {}, dense.samples);
    EXPECT_NEAR_TENSOR(y, slice_of(dense.y.movedim(2, 0), w->spec).movedim(0, 2), 1e-12);
    y.backward(slice_of(dense.dy.movedim(2, 0), w->spec).movedim(0, 2).contiguous());
    EXPECT_NEAR_TENSOR(x.grad(), dense.x.grad().narrow(0, sp_ ? s * tp.rank() : 0, s), 1e-12);
    dense.expect_gradients(parts, tp);
  });
}

TEST_P(Magnitudes, OfARowParallelLayerHaveTheNormsOfAllRanks) {
  const DenseMagnitudes dense(drops_, true);
  comm::run_ranks(tp_, [&](comm::Group tp) {
    const auto w = frozen(make_parameter("w", dense.w, 1, tp.size(), tp.rank())),
               bias = frozen(make_parameter("bias", dense.bias, -1, tp.size(), tp.rank()));
    RowParallelLinear layer(w, bias, tp, {.sequence_parallel = sp_});
    std::vector<Adapter::Part> parts;
    layer.adapt(dense.adapter(true, tp, parts));
    const std::int64_t s = sp_ ? 4 / tp.size() : 4, from = sp_ ? s * tp.rank() : 0;
    const auto x = dense.leaf().detach().narrow(2, w->spec.begin(), w->value.size(1)).contiguous().requires_grad_(true);
    const auto y = layer.forward(x, {}, Value::Needed, dense.samples);
    EXPECT_NEAR_TENSOR(y, dense.y.narrow(0, from, s), 1e-12);
    y.backward(dense.dy.narrow(0, from, s).contiguous());
    EXPECT_NEAR_TENSOR(x.grad(), dense.x.grad().narrow(2, w->spec.begin(), w->value.size(1)), 1e-12);
    dense.expect_gradients(parts, tp);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Magnitudes,
                         ::testing::Values(std::tuple(1, false, false), std::tuple(1, true, false),
                                           std::tuple(2, false, false), std::tuple(2, true, false),
                                           std::tuple(2, false, true), std::tuple(2, true, true)));

TEST(Magnitude, OfAZeroRowStaysFinite) {
  const at::Tensor norms = at::zeros({2}, at::kDouble), m = at::arange(1, 3, at::kDouble);
  EXPECT_NEAR_TENSOR(magnitude_factor(m, norms), m, 0);
}

}  // namespace
}  // namespace megatron::parallel
