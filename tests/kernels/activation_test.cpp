#include "megatron/kernels/activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: libtorch's gelu in float64.
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

}  // namespace
}  // namespace megatron::kernels
