#include "megatron/parallel/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/parallel/linear.h"
#include "tests/parallel/fp8_numbers.h"
#include "tests/testing/tensors.h"

namespace megatron::parallel {
namespace {

using plan::Fp8Operand;
using plan::Fp8Type;
using testing::fp8_quantized;
using testing::fp8_rounded;
using testing::kNaN;
using testing::list_of;
using testing::magnitudes_of;
using testing::make_parameter;
using testing::nearest;
using testing::numbers_of;
using testing::tensor_of;

Fp8Scale by(double scale) { return {at::scalar_tensor(scale), at::scalar_tensor(1 / scale)}; }

class Types : public ::testing::TestWithParam<Fp8Type> {};
INSTANTIATE_TEST_SUITE_P(Fp8, Types, ::testing::Values(Fp8Type::E4M3, Fp8Type::E5M2),
                         [](const auto& test) { return test.param == Fp8Type::E4M3 ? "e4m3" : "e5m2"; });

TEST_P(Types, HaveTheirNumbersInATen) {
  const auto type = GetParam() == Fp8Type::E4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
  const std::vector<double> want = numbers_of(GetParam());
  const std::vector<double> got = list_of(at::arange(256, at::kByte).view(type).to(at::kFloat));
  ASSERT_EQ(got.size(), 256u);
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (std::isnan(want[byte])) {
      EXPECT_TRUE(std::isnan(got[byte])) << byte;
    } else {
      EXPECT_EQ(got[byte], want[byte]) << byte;
    }
  }
  EXPECT_EQ(magnitudes_of(GetParam()).back(), plan::largest_of(GetParam()));
}

// Every number, what is halfway to the next, and what is one unit of float32 before and behind that; then beyond the
// largest, where nothing becomes infinite or NaN.
TEST_P(Types, RoundToTheNearestAndHalfwayToEven) {
  const std::vector<double> magnitudes = magnitudes_of(GetParam());
  std::vector<double> x = {1e-30, plan::largest_of(GetParam()) * 1.01, 1e30, std::numeric_limits<double>::infinity()};
  for (std::size_t i = 0; i + 1 < magnitudes.size(); ++i) {
    const auto half = static_cast<float>((magnitudes[i] + magnitudes[i + 1]) / 2);
    for (const double number :
         {magnitudes[i], double{half}, double{std::nextafter(half, 0.0F)}, double{std::nextafter(half, 1e9F)}})
      x.push_back(number);
  }
  const std::size_t count = x.size();
  for (std::size_t i = 0; i < count; ++i) x.push_back(-x[i]);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const std::vector<double> got = list_of(fp8_quantized(tensor_of(x).to(dtype), GetParam(), by(1)));
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(got[i], nearest(magnitudes, x[i])) << x[i];
  }
  EXPECT_TRUE(std::isnan(fp8_quantized(at::full({1}, kNaN), GetParam(), by(1)).to(at::kFloat).item<float>()));
}

// What is multiplied is a number of the model's type: scales lose nothing, in fp16 neither.
TEST_P(Types, AreScaledWithoutRoundingInEveryTypeOfAModel) {
  const std::vector<double> magnitudes = magnitudes_of(GetParam());
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble})
    for (const double largest : {1e-3, 1.0, 300.0}) {
      const at::Tensor x = at::randn({2000}, at::kFloat).mul(largest / 4).to(dtype);
      const double amax = x.abs().max().item<double>(), scale = plan::fp8_scale(amax, GetParam(), 0, 1);
      const at::Tensor rounded = fp8_rounded(x, GetParam(), by(scale));
      EXPECT_EQ(rounded.scalar_type(), dtype);
      const std::vector<double> from = list_of(x), got = list_of(rounded);
      for (std::size_t i = 0; i < from.size(); ++i)
        ASSERT_EQ(got[i], nearest(magnitudes, from[i] * scale) / scale) << from[i] << " of " << dtype;
    }
}

// By the bits of float32, where the plan has quotients and powers.
TEST_P(Types, HaveTheScaleOfThePlanWhereTheNumbersAre) {
  for (int exponent = -149; exponent < 128; ++exponent)
    for (const float significand : {1.0F, 1.5F, 1.75F, std::nextafter(1.75F, 2.0F), std::nextafter(2.0F, 1.0F)}) {
      const float amax = std::ldexp(significand, exponent);
      const Fp8Scale scale = fp8_scale_of(at::scalar_tensor(amax), GetParam());
      const double want = plan::fp8_scale(amax, GetParam(), 0, 1);
      ASSERT_EQ(scale.scale.item<float>(), want) << amax;
      ASSERT_EQ(scale.inverse.item<float>(), 1 / want) << amax;
    }
  for (const double amax : {0.0, std::numeric_limits<double>::infinity(), kNaN}) {
    const double scale = fp8_scale_of(at::scalar_tensor(amax), GetParam()).scale.item<float>();
    EXPECT_EQ(std::frexp(scale, std::array<int, 1>().data()), 0.5) << "a power of two for " << amax;
  }
}

// A layer of 8 -> 12 with scales other than 1, by sums of the numbers that the definitions give.
struct Reference {
  at::Tensor x = at::randn({4, 2, 8}, at::kDouble), w = at::randn({12, 8}, at::kDouble),
             b = at::randn({12}, at::kDouble), dy = at::randn({4, 2, 12}, at::kDouble);
  plan::Fp8Recipe recipe;

  at::Tensor rounded(const at::Tensor& t, Fp8Operand operand, double scale) const {
    std::vector<double> numbers = list_of(t);
    const std::vector<double> magnitudes = magnitudes_of(recipe.type(operand));
    for (double& number : numbers) number = nearest(magnitudes, number * scale) / scale;
    return tensor_of(numbers).view(t.sizes());
  }
};

/// Scales that follow from what the first step has multiplied, or will follow from what is multiplied.
std::shared_ptr<Fp8Scaling> scaling_for(const Reference& reference) {
  auto scaling = std::make_shared<Fp8Scaling>(reference.recipe, std::vector<std::string>{"other", "layer"}, at::kCPU);
  if (!reference.recipe.delayed()) return scaling;
  scaling->see(1, Fp8Operand::Input, reference.x);
  scaling->see(1, Fp8Operand::Weight, reference.w);
  scaling->see(1, Fp8Operand::OutputGradient, reference.dy);
  scaling->update(scaling->magnitudes());
  return scaling;
}

double largest_in(const at::Tensor& x) { return x.abs().max().item<double>(); }

class Fp8Tp : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Fp8Tp, ::testing::Values(1, 2));

TEST_P(Fp8Tp, ColumnAndRowParallelLayersMultiplyTheRoundedNumbers) {
  for (const auto& [weight_gradients, current] :
       {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
    Reference reference;
    reference.recipe.weight_gradients = weight_gradients;
    reference.recipe.scales = current ? plan::Fp8Scales::Tensor : plan::Fp8Scales::Delayed;
    const double sx = plan::fp8_scale(static_cast<float>(largest_in(reference.x)), Fp8Type::E4M3, 0, 1),
                 sw = plan::fp8_scale(static_cast<float>(largest_in(reference.w)), Fp8Type::E4M3, 0, 1),
                 sd = plan::fp8_scale(static_cast<float>(largest_in(reference.dy)), Fp8Type::E5M2, 0, 1);
    const auto x = reference.rounded(reference.x, Fp8Operand::Input, sx),
               w = reference.rounded(reference.w, Fp8Operand::Weight, sw),
               dy = reference.rounded(reference.dy, Fp8Operand::OutputGradient, sd);
    const auto y = x.matmul(w.t()) + reference.b, dx = dy.matmul(w);
    const auto rows = [](const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); };
    const auto dw = weight_gradients ? rows(dy).t().matmul(rows(x)) : rows(reference.dy).t().matmul(rows(reference.x));
    const auto db = rows(reference.dy).sum(0);
    comm::run_ranks(GetParam(), [&](comm::Group tp) {
      const auto own = [&](const at::Tensor& t, int dim) {
        const std::int64_t size = t.size(dim) / tp.size();
        return t.narrow(dim, size * tp.rank(), size).contiguous();
      };
      const auto fp8 = [&](plan::Linear::Split split_of_layer) {
        return std::make_shared<const Fp8Products>(scaling_for(reference), "layer",
                                                   Fp8Holders{.split = split_of_layer, .slices = tp});
      };
      for (const bool split : {false, true}) {  // along the sequence
        const auto positions = [&](const at::Tensor& t) { return split ? own(t, 0) : t; };
        const auto w_column = make_parameter("w", reference.w, 0, tp.size(), tp.rank());
        const auto b_column = make_parameter("b", reference.b, 0, tp.size(), tp.rank());
        ColumnParallelLinear column(w_column, b_column, tp, {.sequence_parallel = split});
        column.compute_in(fp8(plan::Linear::Split::Outputs));
        const auto whole = positions(reference.x).clone().requires_grad_(true);
        const auto out = column.forward(whole);
        EXPECT_NEAR_TENSOR(out, own(y, 2), 1e-14);
        out.backward(own(reference.dy, 2));
        EXPECT_NEAR_TENSOR(whole.grad(), positions(dx), 1e-14);
        EXPECT_NEAR_TENSOR(w_column->grad, own(dw, 0), 1e-14);
        EXPECT_NEAR_TENSOR(b_column->grad, own(db, 0), 1e-14);

        const auto w_row = make_parameter("w", reference.w, 1, tp.size(), tp.rank());
        const auto b_row = make_parameter("b", reference.b, -1, tp.size(), tp.rank());
        RowParallelLinear row(w_row, b_row, tp, {.sequence_parallel = split});
        row.compute_in(fp8(plan::Linear::Split::Inputs));
        const auto features = own(reference.x, 2).clone().requires_grad_(true);
        const auto sum = row.forward(features);
        EXPECT_NEAR_TENSOR(sum, positions(y), 1e-14);
        sum.backward(positions(reference.dy));
        EXPECT_NEAR_TENSOR(features.grad(), own(dx, 2), 1e-14);
        EXPECT_NEAR_TENSOR(w_row->grad, own(dw, 1), 1e-14);
      }
    });
  }
}

// What a GPU's matrix units are asked for, ATen computes on a CPU by a kernel of its own.
TEST(Fp8Products, AreATensScaledProducts) {
  plan::Fp8Recipe recipe;
  recipe.scales = plan::Fp8Scales::Tensor;
  const auto x = at::randn({32, 64}).mul(100), w = at::randn({48, 64}).mul(0.02), dy = at::randn({32, 48}).mul(1e-5);
  const auto layer = std::make_shared<const Fp8Products>(
      std::make_shared<Fp8Scaling>(recipe, std::vector<std::string>{"layer"}, at::kCPU), "layer");
  Fp8Pass pass(layer);
  const auto of = [](const at::Tensor& t, Fp8Type type) {
    const double scale = plan::fp8_scale(largest_in(t), type, 0, 1);
    return std::pair{fp8_quantized(t, type, by(scale)), at::scalar_tensor(1 / scale)};
  };
  const auto by_columns = [](const at::Tensor& t) { return t.t().contiguous().t(); };
  const auto [qx, sx] = of(x, Fp8Type::E4M3);
  const auto [qw, sw] = of(w, Fp8Type::E4M3);
  const auto [qd, sd] = of(dy, Fp8Type::E5M2);
  const auto near = [](const at::Tensor& got, const at::Tensor& want) {
    EXPECT_NEAR_TENSOR(got, want, 1e-5 * largest_in(want));
  };
  near(pass.output(x, w, {}), at::_scaled_mm(qx, qw.t(), sx, sw, {}, {}, at::kFloat));
  pass.see_gradient(dy);
  near(pass.input_gradient(dy, w), at::_scaled_mm(qd, by_columns(qw), sd, sw, {}, {}, at::kFloat));
  const at::Tensor grad = at::zeros({48, 64});
  pass.weight_gradient(grad, dy, x, 0);
  near(grad, at::_scaled_mm(qd.t().contiguous(), by_columns(qx), sd, sx, {}, {}, at::kFloat));
}

// fc1, an activation and fc2: what the fused kernels compute otherwise, with what is kept or computed again.
TEST(Fp8Products, GoThroughAnActivation) {
  Reference reference;
  const auto w2 = at::randn({8, 12}, at::kDouble), dz = at::randn({4, 2, 8}, at::kDouble);
  const auto first = make_parameter("fc1", reference.w, 0, 1, 0), second = make_parameter("fc2", w2, 1, 1, 0);
  const auto first_bias = make_parameter("b", reference.b, 0, 1, 0);
  ColumnParallelLinear fc1(first, first_bias, {});
  RowParallelLinear fc2(second, nullptr, {});
  auto scaling = std::make_shared<Fp8Scaling>(reference.recipe, std::vector<std::string>{"fc1", "fc2"}, at::kCPU);
  fc1.compute_in(std::make_shared<const Fp8Products>(scaling, "fc1"));
  fc2.compute_in(std::make_shared<const Fp8Products>(scaling, "fc2"));
  const InnerActivation relu{.form = kernels::Activation::Relu};
  const auto leaf = reference.x.clone().requires_grad_(true);
  const auto z = fc2.forward(fc1.forward(leaf, relu, {}), relu, {});
  z.backward(dz);
  // With scales of 1.
  const auto x = reference.rounded(reference.x, Fp8Operand::Input, 1),
             w = reference.rounded(reference.w, Fp8Operand::Weight, 1),
             v = reference.rounded(w2, Fp8Operand::Weight, 1);
  const auto u = x.matmul(w.t()) + reference.b, y = reference.rounded(u.clamp_min(0), Fp8Operand::Input, 1);
  const auto d = reference.rounded(dz, Fp8Operand::OutputGradient, 1), du = d.matmul(v) * u.gt(0);
  const auto e = reference.rounded(du, Fp8Operand::OutputGradient, 1);
  const auto rows = [](const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); };
  EXPECT_NEAR_TENSOR(z, y.matmul(v.t()), 1e-14);
  EXPECT_NEAR_TENSOR(second->grad, rows(d).t().matmul(rows(y)), 1e-14);
  EXPECT_NEAR_TENSOR(first->grad, rows(e).t().matmul(rows(x)), 1e-14);
  EXPECT_NEAR_TENSOR(first_bias->grad, rows(du).sum(0), 1e-14) << "a bias's gradient is of what was not rounded";
  EXPECT_NEAR_TENSOR(leaf.grad(), e.matmul(w), 1e-14);
  EXPECT_EQ(scaling->magnitudes()[1][2].item<float>(), static_cast<float>(largest_in(dz)));
  EXPECT_EQ(scaling->magnitudes()[0][0].item<float>(), static_cast<float>(largest_in(reference.x)));
}

TEST(Fp8Scaling, FollowsTheLargestOfEachStep) {
  for (const bool largest : {false, true}) {
    plan::Fp8Recipe recipe;
    recipe.history = 3;
    recipe.largest_of_history = largest;
    Fp8Scaling scaling(recipe, {"layer"}, at::kCPU);
    EXPECT_EQ(scaling.scale(0, Fp8Operand::Input), 1);
    const auto step = [&](const std::vector<double>& seen) {
      scaling.forget_magnitudes();
      for (const double magnitude : seen)  // microbatches, in any order
        scaling.see(0, Fp8Operand::Input, tensor_of({magnitude, -magnitude / 2}));
      scaling.update(scaling.magnitudes());
      return scaling.scale(0, Fp8Operand::Input);
    };
    EXPECT_EQ(step({1, 7, -2}), 64);
    EXPECT_EQ(step({1}), largest ? 64 : 256);
    EXPECT_EQ(step({}), largest ? 64 : 256) << "a step that multiplied nothing leaves the scale";
    EXPECT_EQ(step({1}), 256) << "the 7 of three steps before is forgotten";
    EXPECT_EQ(scaling.history().size(0), 3);
    EXPECT_EQ(scaling.history()[0][0][0].item<float>(), 1);
    EXPECT_EQ(scaling.history()[1][0][0].item<float>(), 0);
    EXPECT_EQ(scaling.scale(0, Fp8Operand::OutputGradient), 1);
  }
}

// Each rank has some tokens of the sequences, whose magnitudes differ.
TEST(Fp8Scaling, OfATensorFollowsFromAllItsTokens) {
  Reference reference;
  reference.recipe.scales = plan::Fp8Scales::Tensor;
  reference.x.narrow(0, 0, 2).mul_(1e-4);
  reference.dy.narrow(0, 2, 2).mul_(1e-6);
  const auto [sx, sw, sd] = std::tuple{plan::fp8_scale(largest_in(reference.x), Fp8Type::E4M3, 0, 1),
                                       plan::fp8_scale(largest_in(reference.w), Fp8Type::E4M3, 0, 1),
                                       plan::fp8_scale(largest_in(reference.dy), Fp8Type::E5M2, 0, 1)};
  const auto x = reference.rounded(reference.x, Fp8Operand::Input, sx),
             w = reference.rounded(reference.w, Fp8Operand::Weight, sw),
             dy = reference.rounded(reference.dy, Fp8Operand::OutputGradient, sd);
  for (const bool deferred : {false, true})
    comm::run_ranks(2, [&](const comm::Group& sequence) {
      const auto own = [&](const at::Tensor& t) { return t.narrow(0, 2 * sequence.rank(), 2).contiguous(); };
      const auto weight = make_parameter("w", reference.w, 0, 1, 0);
      weight->queue = std::make_shared<GradientQueue>();
      weight->queue->defer(deferred);
      ColumnParallelLinear layer(weight, nullptr, {});
      layer.compute_in(
          std::make_shared<const Fp8Products>(scaling_for(reference), "layer", Fp8Holders{.sequence = sequence}));
      const auto leaf = own(reference.x).requires_grad_(true);
      const auto y = layer.forward(leaf);
      y.backward(own(reference.dy));
      run_pieces(weight->queue->take());
      EXPECT_NEAR_TENSOR(y, own(x).matmul(w.t()), 1e-14);
      EXPECT_NEAR_TENSOR(leaf.grad(), own(dy).matmul(w), 1e-14);
      EXPECT_NEAR_TENSOR(weight->grad, own(dy).reshape({-1, 12}).t().matmul(own(x).reshape({-1, 8})), 1e-14);
    });
}

TEST(Fp8Scaling, OfAWeightIsLookedAtOnceUntilItChanges) {
  plan::Fp8Recipe recipe;
  recipe.scales = plan::Fp8Scales::Tensor;
  recipe.history = 0;
  Fp8Scaling scaling(recipe, {"layer"}, at::kCPU);
  const auto of = [&](Fp8Operand operand, double number) {
    return scaling.current_scale(0, operand, tensor_of({number, -1e-3}), {}).scale.item<float>();
  };
  EXPECT_EQ(of(Fp8Operand::Weight, 7), 64);
  EXPECT_EQ(of(Fp8Operand::Weight, 1), 64) << "the microbatches of a step";
  EXPECT_EQ(of(Fp8Operand::Input, 7), 64);
  EXPECT_EQ(of(Fp8Operand::Input, 1), 256) << "each has an input of its own";
  EXPECT_EQ(scaling.magnitudes()[0][0].item<float>(), 7);
  scaling.update(scaling.magnitudes());
  EXPECT_EQ(of(Fp8Operand::Weight, 1), 256) << "was updated";
  scaling.forget_magnitudes();
  EXPECT_EQ(of(Fp8Operand::Weight, 7), 64);
  scaling.reset();
  EXPECT_EQ(of(Fp8Operand::Weight, 1), 256) << "was read";
  EXPECT_EQ(scaling.bytes(), plan::fp8_state_bytes(recipe, 1, false));
  of(Fp8Operand::OutputGradient, kNaN);
  EXPECT_TRUE(std::isinf(scaling.magnitudes()[0][2].item<float>()));
}

TEST(Fp8Scaling, SeesNumbersThatAreNotFinite) {
  Fp8Scaling scaling({}, {"layer"}, at::kCPU);
  for (const double number : {kNaN, std::numeric_limits<double>::infinity()}) {
    scaling.forget_magnitudes();
    scaling.see(0, Fp8Operand::OutputGradient, tensor_of({1, number, 2}));
    EXPECT_TRUE(std::isinf(scaling.magnitudes()[0][2].item<float>())) << number;
    scaling.see(0, Fp8Operand::OutputGradient, tensor_of({3}));
    EXPECT_TRUE(std::isinf(scaling.magnitudes()[0][2].item<float>())) << number;
  }
  scaling.forget_magnitudes();
  EXPECT_EQ(scaling.magnitudes().sum().item<float>(), 0);
  EXPECT_THROW(scaling.number_of("another"), std::out_of_range);
}

}  // namespace
}  // namespace megatron::parallel
