#include "megatron/kernels/normalization.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/runtime.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: libtorch's layer norm in float64, and the mask of dropout_mask.
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
  });
}

}  // namespace
}  // namespace megatron::kernels
