#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "megatron/kernels/attention.h"
#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"

// The truth that attention_test.cpp compares with, held against libtorch's own attention, against softmaxes written out
// and against finite differences.
namespace megatron::kernels {
namespace {

// A sink is a key whose score is given and whose value is 0: softmax over one more column, as GPT-OSS computes it.
TEST(AttentionReference, HasASinkAsOneMoreColumn) {
  const std::int64_t s = 5, b = 2, n = 3, d = 4;
  const auto leaf = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).requires_grad_(); };
  const at::Tensor q = leaf({s, b, n, d}), k = leaf({s, b, n, d}), v = leaf({s, b, n, d}), sinks = leaf({n});
  const at::Tensor dout = at::randn({s, b, n, d}, at::kDouble);
  const auto heads_first = [](const at::Tensor& x) { return x.permute({1, 2, 0, 3}); };
  const at::Tensor hidden = at::ones({s, s}, at::kBool).triu(1);
  const at::Tensor scores = at::matmul(heads_first(q), heads_first(k).transpose(2, 3)) * 0.5;
  const at::Tensor columns = at::cat({scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()),
                                      sinks.view({1, n, 1, 1}).expand({b, n, s, 1})},
                                     3);
  const at::Tensor truth =
      at::matmul(at::softmax(columns, 3).narrow(3, 0, s), heads_first(v)).permute({2, 0, 1, 3}).contiguous();
  truth.backward(dout);
  AttentionOptions options{.scale = 0.5};
  options.sinks = sinks.detach();
  const AttentionOutput got = reference::attention(q.detach(), k.detach(), v.detach(), options);
  EXPECT_LT(relative_error(got.out, truth.detach()), 1e-14);
  at::Tensor dq = at::empty_like(q.detach()), dk = at::empty_like(dq), dv = at::empty_like(dq);
  reference::attention_backward(dout, q.detach(), k.detach(), v.detach(), got, options, dq, dk, dv, {});
  EXPECT_LT(relative_error(dq, q.grad()), 1e-13);
  EXPECT_LT(relative_error(dk, k.grad()), 1e-13);
  EXPECT_LT(relative_error(dv, v.grad()), 1e-13);
  EXPECT_LT(relative_error(sink_gradient(dout, got, options.sinks), sinks.grad()), 1e-13);
  // And for kernels that have none.
  AttentionOutput without = reference::attention(q.detach(), k.detach(), v.detach(), {.scale = 0.5});
  add_sinks_(without, options.sinks);
  EXPECT_LT(relative_error(without.out, got.out), 1e-14);
  EXPECT_LT(relative_error(without.logsumexp, got.logsumexp), 1e-14);
}

// Written out element by element, and its gradient by differences.
TEST(AttentionReference, CapsTheScoreOfAQueryAndAKey) {
  const at::Tensor q = at::randn({3, 1, 1, 4}, at::kDouble), k = at::randn({3, 1, 1, 4}, at::kDouble);
  const at::Tensor v = at::randn({3, 1, 1, 4}, at::kDouble), dout = at::randn({3, 1, 1, 4}, at::kDouble);
  const AttentionOptions options{.scale = 2, .soft_cap = 1.5};
  const AttentionOutput got = reference::attention(q, k, v, options);
  for (std::int64_t i = 0; i < 3; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j <= i; ++j)
      sum += std::exp(1.5 * std::tanh(2 * (q[i][0][0] * k[j][0][0]).sum().item<double>() / 1.5));
    EXPECT_NEAR(got.logsumexp[0][0][i].item<double>(), std::log(sum), 1e-12);
  }
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  reference::attention_backward(dout, q, k, v, got, options, dq, dk, dv, {});
  constexpr double kStep = 1e-6;
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto at_step = [&](double step) {
      const at::Tensor other = q.clone();
      other[i][0][0][1] += step;
      return (reference::attention(other, k, v, options).out * dout).sum().item<double>();
    };
    EXPECT_NEAR(dq[i][0][0][1].item<double>(), (at_step(kStep) - at_step(-kStep)) / (2 * kStep), 1e-7);
  }
}

// Written out element by element, and its gradient by differences.
TEST(AttentionReference, AddsToTheScoreOfAQueryAndAKeyTheBiasOfTheirDistance) {
  const std::int64_t queries = 3, keys = 5;
  const at::Tensor q = at::randn({queries, 1, 2, 4}, at::kDouble), k = at::randn({keys, 1, 2, 4}, at::kDouble);
  const at::Tensor v = at::randn({keys, 1, 2, 4}, at::kDouble), dout = at::randn({queries, 1, 2, 4}, at::kDouble);
  AttentionOptions options{.scale = 1, .causal = false};
  options.bias = at::randn({2, queries + keys - 1}, at::kDouble);
  const AttentionOutput got = reference::attention(q, k, v, options);
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < queries; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < keys; ++j)
        sum += std::exp((q[i][0][h] * k[j][0][h]).sum().item<double>() +
                        options.bias[h][j - i + queries - 1].item<double>());
      EXPECT_NEAR(got.logsumexp[0][h][i].item<double>(), std::log(sum), 1e-12);
    }
  }
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v),
             dbias = at::empty_like(options.bias);
  reference::attention_backward(dout, q, k, v, got, options, dq, dk, dv, dbias);
  constexpr double kStep = 1e-6;
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t distance = 0; distance < queries + keys - 1; ++distance) {
      const auto at_step = [&](double step) {
        AttentionOptions other = options;
        other.bias = options.bias.clone();
        other.bias[h][distance] += step;
        return (reference::attention(q, k, v, other).out * dout).sum().item<double>();
      };
      EXPECT_NEAR(dbias[h][distance].item<double>(), (at_step(kStep) - at_step(-kStep)) / (2 * kStep), 1e-7);
    }
  }
}

TEST(AttentionReference, OfAWindowOnBothSidesIsASoftmaxOverIt) {
  const std::int64_t s = 9, d = 4, window = 3;
  const at::Tensor q = at::randn({s, 1, 1, d}, at::kDouble), k = at::randn({s, 1, 1, d}, at::kDouble),
                   v = at::randn({s, 1, 1, d}, at::kDouble);
  AttentionOptions options{.scale = 0.5, .ahead = window - 1};
  options.first_key = first_keys_of_windows(1, s, window);
  const at::Tensor out = reference::attention(q, k, v, options).out;
  for (std::int64_t i = 0; i < s; ++i) {
    std::vector<double> value(static_cast<std::size_t>(d));
    double sum = 0;
    for (std::int64_t j = 0; j < s; ++j) {
      if (std::abs(i - j) >= window) continue;
      double score = 0;
      for (std::int64_t c = 0; c < d; ++c) score += q[i][0][0][c].item<double>() * k[j][0][0][c].item<double>();
      sum += std::exp(0.5 * score);
      for (std::int64_t c = 0; c < d; ++c)
        value[static_cast<std::size_t>(c)] += std::exp(0.5 * score) * v[j][0][0][c].item<double>();
    }
    for (std::int64_t c = 0; c < d; ++c)
      EXPECT_NEAR(out[i][0][0][c].item<double>(), value[static_cast<std::size_t>(c)] / sum, 1e-12);
  }
}

TEST(AttentionReference, AgreesWithScaledDotProductAttention) {
  const at::Tensor q = at::randn({9, 2, 3, 5}, at::kDouble), k = at::randn({9, 2, 3, 5}, at::kDouble);
  const at::Tensor v = at::randn({9, 2, 3, 5}, at::kDouble);
  const auto first = [](const at::Tensor& x) { return x.permute({1, 2, 0, 3}); };
  const at::Tensor truth =
      at::scaled_dot_product_attention(first(q), first(k), first(v), {}, 0.0, true).permute({2, 0, 1, 3});
  EXPECT_LT(relative_error(reference::attention(q, k, v, {}).out, truth), 1e-13);
}

TEST(AttentionReference, OfPaddedKeysIsThatOfTheOthersAlone) {
  const at::Tensor q = at::randn({6, 1, 3, 5}, at::kDouble), k = at::randn({9, 1, 3, 5}, at::kDouble);
  const at::Tensor v = at::randn({9, 1, 3, 5}, at::kDouble);
  AttentionOptions options, padded;
  options.causal = padded.causal = false;
  padded.key_lengths = at::tensor({4}, at::kInt);
  const AttentionOutput truth = reference::attention(q, k.narrow(0, 0, 4), v.narrow(0, 0, 4), options);
  EXPECT_LT(relative_error(reference::attention(q, k, v, padded).out, truth.out), 1e-13);
}

TEST(AttentionReference, OfGroupsIsThatOfRepeatedKeys) {
  const at::Tensor q = at::randn({7, 2, 3, 4, 5}, at::kDouble), k = at::randn({9, 2, 3, 5}, at::kDouble);
  const at::Tensor v = at::randn({9, 2, 3, 5}, at::kDouble), dout = at::randn({7, 2, 12, 5}, at::kDouble);
  const auto each = [](const at::Tensor& x) { return x.repeat_interleave(4, 2); };
  const auto summed = [](const at::Tensor& x) { return x.view({9, 2, 3, 4, 5}).sum(3); };
  AttentionOptions options;
  options.dropout = {.p = 0.3, .key = 5, .sample_ids = at::tensor(std::vector<std::int64_t>{3, 8})};
  options.head_offset = 12;
  const AttentionOutput truth = reference::attention(q.flatten(2, 3), each(k), each(v), options);
  const at::Tensor dq = at::empty({7, 2, 12, 5}, at::kDouble), dk = at::empty({9, 2, 12, 5}, at::kDouble),
                   dv = at::empty_like(dk);
  reference::attention_backward(dout, q.flatten(2, 3), each(k), each(v), truth, options, dq, dk, dv, {});
  for (const at::Tensor& queries : {q, q.flatten(2, 3)}) {
    const AttentionOutput got = reference::attention(queries, k, v, options);
    EXPECT_LT(relative_error(got.out, truth.out), 1e-13);
    EXPECT_LT(relative_error(got.logsumexp, truth.logsumexp), 1e-13);
    const at::Tensor gq = at::empty_like(queries), gk = at::empty_like(k), gv = at::empty_like(v);
    reference::attention_backward(dout, queries, k, v, got, options, gq, gk, gv, {});
    EXPECT_LT(relative_error(gq.view(dq.sizes()), dq), 1e-13);
    EXPECT_LT(relative_error(gk, summed(dk)), 1e-13);
    EXPECT_LT(relative_error(gv, summed(dv)), 1e-13);
  }
}

TEST(AttentionReference, BackwardIsTheSlopeOfForward) {
  AttentionOptions options;
  options.dropout = {.p = 0.2, .key = 9, .sample_ids = at::tensor(std::vector<std::int64_t>{3})};
  at::Tensor x[3] = {at::randn({6, 1, 2, 4}, at::kDouble), at::randn({8, 1, 2, 4}, at::kDouble),
                     at::randn({8, 1, 2, 4}, at::kDouble)};
  const at::Tensor dout = at::randn({6, 1, 2, 4}, at::kDouble);
  const auto loss = [&] { return (reference::attention(x[0], x[1], x[2], options).out * dout).sum().item<double>(); };
  const AttentionOutput forward = reference::attention(x[0], x[1], x[2], options);
  const at::Tensor gradient[3] = {at::empty_like(x[0]), at::empty_like(x[1]), at::empty_like(x[2])};
  reference::attention_backward(dout, x[0], x[1], x[2], forward, options, gradient[0], gradient[1], gradient[2], {});
  for (int which = 0; which < 3; ++which) {
    const at::Tensor flat = x[which].view({-1}), slope = gradient[which].view({-1});
    for (std::int64_t i = 0; i < flat.numel(); i += 5) {
      const double step = 1e-5, at = flat[i].item<double>();
      flat[i].fill_(at + step);
      const double up = loss();
      flat[i].fill_(at - step);
      const double down = loss();
      flat[i].fill_(at);
      EXPECT_NEAR((up - down) / (2 * step), slope[i].item<double>(), 1e-8) << "operand " << which << " element " << i;
    }
  }
}

}  // namespace
}  // namespace megatron::kernels
