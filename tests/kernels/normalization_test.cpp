#include "megatron/kernels/normalization.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/runtime.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: libtorch's norms in float64, their gradients by autograd, and the mask of dropout_mask.
namespace megatron::kernels {
namespace {

const std::int64_t kWidths[] = {1, 7, 16, 48, 100, 768};

Dropout some_dropout(std::int64_t features) {
  return {.p = 0.3,
          .key = 77,
          .sample_ids = at::tensor(std::vector<std::int64_t>{4, 9}),
          .position_offset = 3,
          .features = features + 5,
          .feature_offset = 2};
}

using NormalizationTest = OnEveryInstructionSet;

TEST_F(NormalizationTest, MatchesLibtorchForwardAndBackward) {
  on_each([] {
    for (const std::int64_t h : kWidths) {
      SCOPED_TRACE(h);
      const at::Tensor x = at::randn({37, 2, h}) * 3 + 1, w = at::randn({h}), b = at::randn({h}),
                       dy = at::randn({37, 2, h});
      const auto [y64, mean64, rstd64] = at::native_layer_norm(wide(x), {h}, wide(w), wide(b), 1e-5);
      const auto [dx64, dw64, db64] =
          at::native_layer_norm_backward(wide(dy), wide(x), {h}, mean64, rstd64, wide(w), wide(b), {true, true, true});
      const NormOutput got = layer_norm(x, w, b, 1e-5);
      EXPECT_LT(relative_error(got.y, y64), 1e-6);
      EXPECT_LT(relative_error(got.mean, mean64.flatten()), 1e-6);
      if (h > 1) {
        EXPECT_LT(relative_error(got.rstd, rstd64.flatten()), 2e-6);
      }
      const at::Tensor past = at::randn(x.sizes()), dw = at::full({h}, 5.0), db = at::full({h}, 6.0);
      at::Tensor dx = layer_norm_backward(dy, x, got.mean, got.rstd, w, dw, db, 0.0, past);
      EXPECT_LT(relative_error(dx, dx64 + wide(past)), 3e-6);
      if (h > 1) {
        EXPECT_LT(relative_error(dw, dw64), 1e-6);
      }
      // Against the size of what is summed: the sum itself may be near 0.
      const at::Tensor terms = wide(dy).abs().sum(at::IntArrayRef{0, 1});
      EXPECT_LT(((wide(db) - db64).abs() / terms).max().item<double>(), 1e-7);
      layer_norm_backward(dy, x, got.mean, got.rstd, w, dw, db, 1.0);
      EXPECT_LT(((wide(db) - 2 * db64).abs() / terms).max().item<double>(), 2e-7);
      if (h > 1) {
        EXPECT_LT(relative_error(dw, 2 * dw64), 1e-6);
      }
    }
  });
}

struct RmsTruth {
  at::Tensor y, dx, dw;
};
RmsTruth true_rms_norm(const at::Tensor& x, const at::Tensor& w, const at::Tensor& dy, double eps) {
  const at::Tensor x64 = wide(x).clone().requires_grad_(), w64 = wide(w).clone().requires_grad_();
  const at::Tensor y = at::rms_norm(x64, {x.size(-1)}, w64, eps);
  y.backward(wide(dy));
  return {y.detach(), x64.grad(), w64.grad()};
}

TEST_F(NormalizationTest, RmsNormMatchesLibtorchForwardAndBackwardInEveryPrecision) {
  on_each_and_the_reference([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const std::int64_t h : kWidths) {
        SCOPED_TRACE(testing::Message() << dtype << ' ' << h);
        const at::Tensor x = (at::randn({37, 2, h}) * 3 + 1).to(dtype), w = at::randn({h}).to(dtype),
                         dy = at::randn({37, 2, h}).to(dtype), past = at::randn({37, 2, h}).to(dtype);
        const RmsTruth truth = true_rms_norm(x, w, dy, 0.1);  // with it rows of one element keep their size
        const NormOutput got = rms_norm(x, w, 0.1);
        EXPECT_FALSE(got.mean.defined());
        EXPECT_EQ(got.rstd.scalar_type(), at::kFloat);
        EXPECT_LT(error_beyond_rounding(got.y, truth.y), 1e-5);
        const at::Tensor dw = at::full({h}, 5.0);
        const at::Tensor dx = rms_norm_backward(dy, x, got.rstd, w, dw, 0.0, past);
        EXPECT_LT(error_beyond_rounding(dx, truth.dx + wide(past)), 2e-5);
        // Against the size of what is summed: the sum of one column may be near 0.
        const at::Tensor terms = (wide(dy) * truth.y / wide(w)).abs().sum(at::IntArrayRef{0, 1});
        EXPECT_LT(((wide(dw) - truth.dw).abs() / terms).max().item<double>(), 5e-7);
        rms_norm_backward(dy, x, got.rstd, w, dw, 1.0);
        EXPECT_LT(((wide(dw) - 2 * truth.dw).abs() / terms).max().item<double>(), 1e-6);
      }
    }
  });
}

TEST(NormalizationReference, RmsNormKeepsFloat64) {
  const at::Tensor x = at::randn({5, 2, 33}, at::kDouble), w = at::randn({33}, at::kDouble);
  const RmsTruth truth = true_rms_norm(x, w, x, 1e-5);
  const at::Tensor dw = at::full({33}, 5.0, at::kDouble);
  const NormOutput got = rms_norm(x, w, 1e-5);
  EXPECT_LT(relative_error(got.y, truth.y), 1e-14);
  EXPECT_LT(relative_error(rms_norm_backward(x, x, got.rstd, w, dw, 0), truth.dx), 1e-14);
  EXPECT_LT(relative_error(dw, truth.dw), 1e-14);
}

TEST_F(NormalizationTest, LayerNormOfHalvesIsRoundedOnceWithGradientsInFloat32) {
  on_each_and_the_reference([] {
    for (const at::ScalarType dtype : kHalves) {
      for (const std::int64_t h : {7, 48, 100, 768}) {
        SCOPED_TRACE(testing::Message() << dtype << ' ' << h);
        const at::Tensor x = (at::randn({37, 2, h}) * 3 + 1).to(dtype), w = at::randn({h}).to(dtype),
                         b = at::randn({h}).to(dtype), dy = at::randn({37, 2, h}).to(dtype),
                         past = at::randn({37, 2, h}).to(dtype);
        const auto [y, mean, rstd] = at::native_layer_norm(wide(x), {h}, wide(w), wide(b), 1e-5);
        const auto [dx, dw, db] =
            at::native_layer_norm_backward(wide(dy), wide(x), {h}, mean, rstd, wide(w), wide(b), {true, true, true});
        const NormOutput got = layer_norm(x, w, b, 1e-5);
        EXPECT_LT(error_beyond_rounding(got.y, y), 1e-5);
        const at::Tensor grad_w = at::full({h}, 5.0), grad_b = at::full({h}, 6.0).to(dtype);
        const at::Tensor got_dx = layer_norm_backward(dy, x, got.mean, got.rstd, w, grad_w, grad_b, 0.0, past);
        EXPECT_LT(error_beyond_rounding(got_dx, dx + wide(past)), 2e-5);
        EXPECT_LT(relative_error(grad_w, dw), 2e-6);
        EXPECT_LT(error_beyond_rounding(grad_b, db), 1e-4);
      }
    }
  });
}

TEST_F(NormalizationTest, ResidualBranchesOfHalvesAreComputedInFloat32AndRoundedOnce) {
  on_each_and_the_reference([] {
    for (const at::ScalarType dtype : kHalves) {
      for (const std::int64_t h : kWidths) {
        SCOPED_TRACE(testing::Message() << dtype << ' ' << h);
        const Dropout dropout = some_dropout(h);
        const at::Tensor x = at::randn({5, 2, h}).to(dtype), bias = at::randn({h}).to(dtype),
                         residual = at::randn({5, 2, h}).to(dtype), w = at::randn({h}).to(dtype);
        const at::Tensor mask = reference::dropout_mask(dropout, 5, 2, h, at::kFloat, at::kCPU);
        const at::Tensor truth = ((x.to(at::kFloat) + bias) * mask + residual).to(dtype);
        EXPECT_TRUE(bias_dropout_add(x.clone(), bias, residual, dropout).equal(truth));
        EXPECT_TRUE(dropout_backward(x, dropout).equal((x.to(at::kFloat) * mask).to(dtype)));
        const AddNormOutput layer = bias_dropout_add_norm(x.clone(), bias, residual, dropout, w, bias, 1e-5);
        EXPECT_TRUE(layer.sum.equal(truth) && layer.y.equal(layer_norm(truth, w, bias, 1e-5).y));
        const AddNormOutput rms = bias_dropout_add_rms_norm(x.clone(), bias, residual, dropout, w, 1e-5);
        const NormOutput alone = rms_norm(truth, w, 1e-5);
        EXPECT_TRUE(rms.sum.equal(truth) && rms.y.equal(alone.y) && rms.rstd.equal(alone.rstd));
        EXPECT_FALSE(rms.mean.defined());
      }
    }
  });
}

TEST_F(NormalizationTest, SumsOfHalvesNeitherOverflowNorStandStill) {
  on_each_and_the_reference([] {
    const at::Tensor large = at::full({600, 1, 768}, 500.0, at::kHalf), w = at::ones({768}, at::kHalf);
    EXPECT_TRUE(rms_norm(large, w, 1e-5).y.equal(at::ones_like(large)));  // the squares alone are past 65504
    EXPECT_TRUE(layer_norm(large, w, w, 1e-5).y.equal(at::ones_like(large)));
    const at::Tensor grad = at::empty({768});
    accumulate_bias_gradient(grad, large, 0);
    EXPECT_TRUE(grad.eq(300'000).all().item<bool>());
    const at::Tensor many = at::ones({2000, 1, 5}, at::kBFloat16), rounded = at::ones({5}, at::kBFloat16);
    accumulate_bias_gradient(rounded, many, 1);  // one by one it would stop at 256
    EXPECT_TRUE(rounded.equal(at::full({5}, 2001.0).to(at::kBFloat16)));
  });
}

TEST_F(NormalizationTest, AddsBiasDropoutAndResidual) {
  on_each([] {
    for (const std::int64_t h : kWidths) {
      const Dropout dropout = some_dropout(h);
      const at::Tensor x = at::randn({5, 2, h}), bias = at::randn({h}), residual = at::randn({5, 2, h});
      const at::Tensor mask = reference::dropout_mask(dropout, 5, 2, h, at::kFloat, at::kCPU);
      at::Tensor in_place = x.clone();
      const at::Tensor sum = bias_dropout_add(in_place, bias, residual, dropout);
      EXPECT_TRUE(sum.is_same(in_place));
      EXPECT_TRUE(sum.equal((x + bias) * mask + residual)) << h;
      EXPECT_TRUE(bias_dropout_add(x.clone(), {}, residual, {}).equal(x + residual)) << h;
      EXPECT_TRUE(dropout_backward(residual, dropout).equal(residual * mask)) << h;
      EXPECT_TRUE(dropout_backward(residual, {}).is_same(residual));
    }
  });
}

TEST_F(NormalizationTest, FusedWithTheResidualItGivesTheSameBits) {
  on_each([] {
    for (const std::int64_t h : kWidths) {
      const Dropout dropout = some_dropout(h);
      const at::Tensor x = at::randn({5, 2, h}), bias = at::randn({h}), residual = at::randn({5, 2, h});
      const at::Tensor w = at::randn({h}), b = at::randn({h});
      const AddNormOutput fused = bias_dropout_add_norm(x.clone(), bias, residual, dropout, w, b, 1e-5);
      const at::Tensor sum = bias_dropout_add(x.clone(), bias, residual, dropout);
      const NormOutput norm = layer_norm(sum, w, b, 1e-5);
      EXPECT_TRUE(fused.sum.equal(sum) && fused.y.equal(norm.y) && fused.mean.equal(norm.mean) &&
                  fused.rstd.equal(norm.rstd));
    }
  });
}

TEST_F(NormalizationTest, SumsBiasGradientsOverTheLeadingDimensions) {
  on_each([] {
    for (const std::int64_t h : kWidths) {
      const at::Tensor dy = at::randn({67, 2, h}) + 1, grad = at::full({h}, 3.0);
      const at::Tensor truth = wide(dy).sum(at::IntArrayRef{0, 1});
      accumulate_bias_gradient(grad, dy, 0.0);
      EXPECT_LT(relative_error(grad, truth), 1e-6);
      accumulate_bias_gradient(grad, dy, 1.0);
      EXPECT_LT(relative_error(grad, 2 * truth), 1e-6);
    }
  });
}

TEST_F(NormalizationTest, GivesTheSameBitsOnAnyNumberOfThreads) {
  on_each([] {
    const at::Tensor x = at::randn({300, 1, 64}), w = at::randn({64}), dy = at::randn({300, 1, 64});
    at::Tensor dw[2], db[2];
    for (int threads : {1, 2}) {
      configure_thread(threads);
      const NormOutput norm = layer_norm(x, w, w, 1e-5);
      dw[threads - 1] = at::empty_like(w);
      db[threads - 1] = at::empty_like(w);
      layer_norm_backward(dy, x, norm.mean, norm.rstd, w, dw[threads - 1], db[threads - 1], 0.0);
    }
    EXPECT_TRUE(dw[0].equal(dw[1]) && db[0].equal(db[1]));
    for (int threads : {1, 2}) {
      configure_thread(threads);
      const at::Tensor x16 = x.to(at::kBFloat16), w16 = w.to(at::kBFloat16);
      rms_norm_backward(x16, x16, rms_norm(x16, w16, 1e-5).rstd, w16, dw[threads - 1], 0.0);
    }
    EXPECT_TRUE(dw[0].equal(dw[1]));
  });
}

}  // namespace
}  // namespace megatron::kernels
