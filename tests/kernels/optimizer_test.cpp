#include "megatron/kernels/optimizer.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/runtime.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: AdamW of the paper in scalar float64.
namespace megatron::kernels {
namespace {

struct State {
  at::Tensor param, exp_avg, exp_avg_sq;
};

void scalar_adamw(State& s, const at::Tensor& grad, const Adam& adam, const Update& o) {
  for (std::int64_t i = 0; i < s.param.numel(); ++i) {
    const double g = grad[i].item<double>() * o.grad_scale, t = static_cast<double>(o.step);
    const double m = adam.beta1 * s.exp_avg[i].item<double>() + (1 - adam.beta1) * g;
    const double v = adam.beta2 * s.exp_avg_sq[i].item<double>() + (1 - adam.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(adam.beta1, t)), v_hat = v / (1 - std::pow(adam.beta2, t));
    const double p = s.param[i].item<double>();
    s.exp_avg[i] = m;
    s.exp_avg_sq[i] = v;
    s.param[i] = p - o.learning_rate * (m_hat / (std::sqrt(v_hat) + adam.eps) + o.weight_decay * p);
  }
}

void expect_matches_the_paper(at::ScalarType dtype, double tolerance) {
  for (const std::int64_t count : {1, 37}) {
    State truth{at::randn({count}, at::kDouble), at::zeros({count}, at::kDouble), at::zeros({count}, at::kDouble)};
    const State got{truth.param.to(dtype).clone(), truth.exp_avg.to(dtype).clone(), truth.exp_avg_sq.to(dtype).clone()};
    truth.param = wide(got.param).clone();
    const Adam adam{.beta2 = 0.95};
    Update options{.learning_rate = 0.01, .weight_decay = 0.1, .grad_scale = 0.3};
    for (options.step = 1; options.step <= 5; ++options.step) {
      const at::Tensor grad = at::randn({count}).to(dtype);
      adam_(got.param, {}, grad, got.exp_avg, got.exp_avg_sq, adam, options);
      scalar_adamw(truth, grad, adam, options);
    }
    EXPECT_LT(relative_error(got.param, truth.param), tolerance);
    EXPECT_LT(relative_error(got.exp_avg, truth.exp_avg), tolerance);
    EXPECT_LT(relative_error(got.exp_avg_sq, truth.exp_avg_sq), tolerance);
  }
}

using OptimizerTest = OnEveryInstructionSet;

TEST_F(OptimizerTest, AdamwIsThatOfThePaper) {
  on_each([] { expect_matches_the_paper(at::kFloat, 1e-6); });
}
TEST(OptimizerReference, AdamwKeepsFloat64) { expect_matches_the_paper(at::kDouble, 1e-14); }

TEST_F(OptimizerTest, SumsSquaresInFloat64OnAnyNumberOfThreads) {
  on_each([] {
    for (const std::int64_t count : {0, 1, 31, 200'001}) {
      const at::Tensor x = at::randn({count}) * 1e-3;
      const double truth = wide(x).square().sum().item<double>();
      configure_thread(1);
      const double one = sum_of_squares(x);
      configure_thread(2);
      EXPECT_NEAR(one, truth, 1e-13 * truth);
      EXPECT_EQ(one, sum_of_squares(x));
      EXPECT_NEAR(sum_of_squares(wide(x)), truth, 1e-13 * truth);
    }
  });
}

TEST_F(OptimizerTest, NormsSeeNanAndInfinityWhereverTheyAre) {
  on_each([] {
    for (const std::int64_t at : {0, 17, 100'000, 140'000}) {
      at::Tensor x = at::randn({140'001});
      EXPECT_EQ(max_abs(x), x.abs().max().item<double>());
      x[at] = -std::numeric_limits<float>::infinity();
      EXPECT_EQ(max_abs(x), std::numeric_limits<double>::infinity());
      EXPECT_EQ(sum_of_squares(x), std::numeric_limits<double>::infinity());
      x[at] = std::nan("");
      EXPECT_TRUE(std::isnan(max_abs(x))) << at;
      EXPECT_TRUE(std::isnan(sum_of_squares(x))) << at;
    }
    EXPECT_EQ(max_abs(at::zeros({0})), 0.0);
  });
}

}  // namespace
}  // namespace megatron::kernels
