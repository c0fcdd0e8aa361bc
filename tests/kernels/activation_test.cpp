#include "megatron/kernels/activation.h"

#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: libtorch's activations in float64, and their gradients by autograd.
namespace megatron::kernels {
namespace {

using ActivationTest = OnEveryInstructionSet;

/// Largest |y - truth| as a part of |u|: the value is u times a gate in [0, 1], and near 0 where u is far below it.
double error_of_input(const at::Tensor& y, const at::Tensor& truth, const at::Tensor& u) {
  return ((wide(y) - truth).abs() / wide(u).abs()).max().item<double>();
}

TEST_F(ActivationTest, IsAccurateOverTheWholeRange) {
  on_each([] {
    const at::Tensor u = at::linspace(-30, 30, 100'003);
    for (const Activation form : {Activation::GeluTanh, Activation::GeluErf}) {
      const char* name = form == Activation::GeluTanh ? "tanh" : "none";
      const at::Tensor y = wide(activation(u, form)), truth = at::gelu(wide(u), name);
      EXPECT_LT(error_of_input(y, truth, u), 4e-7) << name;
      const at::Tensor slope = wide(activation_backward(at::ones_like(u), u, form));
      const at::Tensor true_slope = at::gelu_backward(at::ones_like(wide(u)), wide(u), name);
      EXPECT_LT((slope - true_slope).abs().max().item<double>(), 1e-6) << name;
    }
  });
}

TEST_F(ActivationTest, OfHugeNumbersAreTheseOrNothing) {
  on_each([] {
    const float infinity = std::numeric_limits<float>::infinity();
    const at::Tensor u = at::tensor({1e6F, 3e38F, infinity});
    for (const Activation form : {Activation::GeluTanh, Activation::GeluErf, Activation::Silu}) {
      const at::Tensor y = activation(u, form);
      EXPECT_LT(error_of_input(y.narrow(0, 0, 2), wide(u.narrow(0, 0, 2)), u.narrow(0, 0, 2)), 4e-7)
          << static_cast<int>(form.kind);
      EXPECT_EQ(y[2].item<float>(), infinity) << static_cast<int>(form.kind);
      const at::Tensor nan = activation(at::full({20}, NAN), form);
      EXPECT_TRUE(nan.isnan().all().item<bool>()) << static_cast<int>(form.kind);
    }
  });
}

TEST_F(ActivationTest, AddsTheBiasInPlaceAndMatchesTheReferenceForAnyWidth) {
  on_each([] {
    for (const std::int64_t features : {1, 5, 16, 33, 100}) {
      const at::Tensor x = at::randn({3, 2, features}), bias = at::randn({features});
      at::Tensor x64 = wide(x), x32 = x.clone();
      const at::Tensor truth = reference::bias_activation(x64, wide(bias), Activation::GeluTanh),
                       y = bias_activation(x32, bias, Activation::GeluTanh);
      EXPECT_LT(error_of_input(y, truth, x32), 4e-7) << features;
      EXPECT_TRUE(x32.equal(x + bias)) << features;
      at::Tensor without = x.clone();
      EXPECT_LT(error_of_input(bias_activation(without, {}, Activation::GeluErf), at::gelu(wide(x)), x), 4e-7)
          << features;
      EXPECT_TRUE(without.equal(x));
    }
  });
}

TEST_F(ActivationTest, BackwardOverwritesItsGradient) {
  on_each([] {
    const at::Tensor dy = at::randn({7, 31}), u = at::randn({7, 31});
    at::Tensor in_place = dy.clone();
    const at::Tensor dx = activation_backward(in_place, u, Activation::GeluTanh);
    EXPECT_TRUE(dx.is_same(in_place));
    EXPECT_LT(relative_error(dx, at::gelu_backward(wide(dy), wide(u), "tanh")), 4e-7);
  });
}

TEST_F(ActivationTest, TakesTheReferenceForViewsAndOtherDtypes) {
  on_each([] {
    const at::Tensor u = at::randn({8, 6});
    EXPECT_LT(relative_error(activation(u.t(), Activation::GeluTanh), at::gelu(wide(u.t()), "tanh")), 4e-7);
    EXPECT_LT(relative_error(activation(wide(u), Activation::GeluErf), at::gelu(wide(u))), 1e-15);
  });
}

at::Tensor true_activation(const at::Tensor& u, Activation form) {
  switch (form.kind) {
    case Activation::GeluTanh:
      return at::gelu(u, "tanh");
    case Activation::GeluErf:
      return at::gelu(u);
    case Activation::Silu:
      return at::silu(u);
    case Activation::Relu:
      return at::relu(u);
    case Activation::SquaredRelu:
      return at::relu(u).square();
    case Activation::QuickGelu:
      return at::silu(u * 1.702) / 1.702;
  }
  return {};
}

/// d (f(u) . dy) / d u.
template <class Function>
at::Tensor true_gradient(const at::Tensor& u, const at::Tensor& dy, const Function& f) {
  const at::Tensor leaf = wide(u).detach().clone().requires_grad_();
  f(leaf).backward(wide(dy));
  return leaf.grad();
}

at::Tensor true_gated(const at::Tensor& u, Activation form) {
  const std::int64_t features = u.size(-1) / 2;
  const bool clamps = form.clamp > 0;
  const at::Tensor gate = u.narrow(-1, 0, features), value = u.narrow(-1, features, features);
  return true_activation(clamps ? gate.clamp_max(form.clamp) : gate, form) *
         ((clamps ? value.clamp(-form.clamp, form.clamp) : value) + form.offset);
}

TEST_F(ActivationTest, OfExtremeNumbersIsThatOfFloat64) {
  const auto infinity = std::numeric_limits<float>::infinity();
  const at::Tensor grid =
      at::tensor({-3e38F, -1e30F, -1e6F, -1e4F, -104.0F, -100.0F, -88.5F,  -88.0F, -87.0F, -86.0F, -60.0F,
                  -51.0F, -20.0F, -9.6F, -9.5F, -6.0F,   -1e-3F,  -1e-30F, 0.0F,   1e-30F, 1e-3F,  6.0F,
                  9.5F,   20.0F,  51.0F, 86.0F, 88.0F,   89.0F,   104.0F,  1e4F,   1e6F,   1e19F});
  on_each_and_the_reference([&] {
    for (const Activation form : kForms) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(testing::Message() << "form " << static_cast<int>(form.kind) << ' ' << dtype);
        const at::Tensor rounded = grid.to(dtype), u = rounded.index({rounded.isfinite()});
        const double last_bit = dtype == at::kFloat ? 4e-7 : dtype == at::kHalf ? 5e-4 : 4e-3;
        const at::Tensor truth = true_activation(wide(u), form).to(dtype).to(at::kDouble);
        const at::Tensor y = wide(activation(u, form));
        // A part of what is multiplied, which far below 0 is no number that matters.
        const at::Tensor allowed = last_bit * truth.abs() + 4e-7 * wide(u).clamp(-30, 30).abs();
        EXPECT_TRUE(((y - truth).abs().le(allowed).logical_or(y.eq(truth))).all().item<bool>()) << y << truth;
        const at::Tensor slope = wide(activation_backward(at::ones_like(u), u, form));
        const at::Tensor true_slope =
            true_gradient(u, at::ones_like(u), [&](const at::Tensor& x) { return true_activation(x, form); });
        EXPECT_TRUE((slope - true_slope).abs().le(last_bit * true_slope.abs() + 1e-6).all().item<bool>())
            << slope << true_slope;

        const at::Tensor ends = activation(at::tensor({infinity, -infinity, NAN}).to(dtype), form).to(at::kFloat);
        EXPECT_EQ(ends[0].item<float>(), infinity);
        const float below = ends[1].item<float>();
        EXPECT_TRUE(std::isnan(below) || std::abs(below) < 1e-30F) << below;
        EXPECT_TRUE(std::isnan(ends[2].item<float>()));
      }
    }
  });
}

TEST_F(ActivationTest, EveryFormAndPrecisionIsRoundedOnce) {
  on_each_and_the_reference([] {
    for (const Activation form : kForms) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(testing::Message() << "form " << static_cast<int>(form.kind) << ' ' << dtype);
        const at::Tensor u = (at::randn({5, 3, 35}) * 3).to(dtype), dy = at::randn({5, 3, 35}).to(dtype);
        EXPECT_LT(error_beyond_rounding(activation(u, form), true_activation(wide(u), form)), 1e-5);
        const at::Tensor truth = true_gradient(u, dy, [&](const at::Tensor& x) { return true_activation(x, form); });
        EXPECT_LT(error_beyond_rounding(activation_backward(dy.clone(), u, form), truth), 1e-5);
      }
    }
  });
}

TEST_F(ActivationTest, BackwardReadsWhatTheForwardPassStored) {
  on_each_and_the_reference([] {
    for (const at::ScalarType dtype : kHalves) {
      const at::Tensor x = at::randn({4, 2, 70}).to(dtype), bias = at::randn({70}).to(dtype);
      const at::Tensor u = x.clone();
      EXPECT_TRUE(bias_activation(u, bias, Activation::Silu).equal(activation(u, Activation::Silu)));
      EXPECT_TRUE(u.equal((x.to(at::kFloat) + bias.to(at::kFloat)).to(dtype)));
      const at::Tensor v = x.clone();
      EXPECT_TRUE(bias_gated_activation(v, bias, Activation::Silu).equal(gated_activation(v, Activation::Silu)));
      EXPECT_TRUE(v.equal(u));
    }
  });
}

TEST_F(ActivationTest, GatedUnitsMultiplyTheValueByTheActivatedGate) {
  on_each_and_the_reference([] {
    for (const Activation form : kForms) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        for (const std::int64_t features : {1, 16, 21, 40}) {
          SCOPED_TRACE(testing::Message() << "form " << static_cast<int>(form.kind) << ' ' << dtype << ' ' << features);
          const at::Tensor u = at::randn({5, 2, 2 * features}).to(dtype), dy = at::randn({5, 2, features}).to(dtype);
          const at::Tensor y = gated_activation(u, form);
          EXPECT_EQ(y.scalar_type(), dtype);
          EXPECT_LT(error_beyond_rounding(y, true_gated(wide(u), form)), 1e-5);
          const at::Tensor truth = true_gradient(u, dy, [&](const at::Tensor& x) { return true_gated(x, form); });
          EXPECT_LT(error_beyond_rounding(gated_activation_backward(dy, u, form), truth), 1e-5);
        }
      }
    }
  });
}

TEST_F(ActivationTest, LetsNanThroughInEveryForm) {
  on_each_and_the_reference([] {
    for (const Activation form : kForms) {
      const at::Tensor u = at::full({20}, std::nan(""));
      EXPECT_TRUE(activation(u, form).isnan().all().item<bool>()) << static_cast<int>(form.kind);
      EXPECT_TRUE(gated_activation(u, form).isnan().all().item<bool>()) << static_cast<int>(form.kind);
    }
  });
}

}  // namespace
}  // namespace megatron::kernels
