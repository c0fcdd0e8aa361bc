#include "megatron/kernels/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megatron/kernels/reference.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/isa.h"

// Truth: the reference in float64, itself held against libtorch's own attention and against finite differences.
namespace megatron::kernels {
namespace {

struct Shape {
  std::int64_t queries, keys, batch, heads, size;
};

/// Views of one fused projection, as the model gives them.
struct Case {
  at::Tensor fused_q, fused_kv, q, k, v, dout;
  explicit Case(const Shape& s) {
    fused_q = at::randn({s.queries, s.batch, s.heads, 3 * s.size});
    fused_kv = s.queries == s.keys ? fused_q : at::randn({s.keys, s.batch, s.heads, 3 * s.size});
    q = fused_q.narrow(3, 0, s.size);
    k = fused_kv.narrow(3, s.size, s.size);
    v = fused_kv.narrow(3, 2 * s.size, s.size);
    dout = at::randn({s.queries, s.batch, s.heads, s.size});
  }
};

void expect_matches_reference(const Shape& shape, const AttentionOptions& options) {
  SCOPED_TRACE(testing::Message() << "queries " << shape.queries << " keys " << shape.keys << " batch " << shape.batch
                                  << " heads " << shape.heads << " size " << shape.size);
  const Case c(shape);
  const AttentionOutput truth = reference::attention(wide(c.q), wide(c.k), wide(c.v), options);
  const AttentionOutput got = attention(c.q, c.k, c.v, options);
  EXPECT_TRUE(got.out.is_contiguous());
  EXPECT_LT(relative_error(got.out, truth.out), 2e-6);
  const at::Tensor seen = truth.logsumexp.isfinite();
  EXPECT_TRUE(got.logsumexp.isfinite().equal(seen));
  EXPECT_LT(relative_error(got.logsumexp.masked_select(seen), truth.logsumexp.masked_select(seen)), 1e-6);

  at::Tensor dq64 = at::empty(c.q.sizes(), at::kDouble), dk64 = at::empty(c.k.sizes(), at::kDouble);
  at::Tensor dv64 = at::empty(c.v.sizes(), at::kDouble);
  reference::attention_backward(wide(c.dout), wide(c.q), wide(c.k), wide(c.v), truth, options, dq64, dk64, dv64);
  const at::Tensor grads_q = at::zeros(c.fused_q.sizes()).fill_(7), grads_kv = at::zeros(c.fused_kv.sizes()).fill_(7);
  const at::Tensor dq = grads_q.narrow(3, 0, shape.size), dk = grads_kv.narrow(3, shape.size, shape.size);
  const at::Tensor dv = grads_kv.narrow(3, 2 * shape.size, shape.size);
  attention_backward(c.dout, c.q, c.k, c.v, got, options, dq, dk, dv);
  EXPECT_LT(relative_error(dq, dq64), 2e-6);
  EXPECT_LT(relative_error(dk, dk64), 2e-6);
  EXPECT_LT(relative_error(dv, dv64), 2e-6);
  EXPECT_TRUE(grads_q.narrow(3, shape.size, 1).eq(7).all().item<bool>() || shape.queries == shape.keys);
}

using AttentionTest = OnEveryInstructionSet;

TEST_F(AttentionTest, MatchesTheReferenceForwardAndBackwardForAnyShape) {
  on_each([] {
    for (const Shape& shape : {Shape{1, 1, 1, 1, 1}, Shape{5, 5, 2, 3, 7}, Shape{16, 16, 1, 2, 16},
                               Shape{97, 97, 2, 2, 24}, Shape{130, 130, 1, 3, 64}, Shape{300, 300, 1, 1, 128}}) {
      expect_matches_reference(shape, {});
      expect_matches_reference(shape, {.scale = 0.3, .causal = false});
    }
  });
}

TEST_F(AttentionTest, SeesTheWholeCacheBeforeTheQueries) {
  on_each([] {
    for (const Shape& shape :
         {Shape{1, 300, 2, 3, 64}, Shape{3, 40, 1, 2, 20}, Shape{8, 9, 1, 1, 16}, Shape{100, 613, 1, 1, 32}}) {
      expect_matches_reference(shape, {});
    }
  });
}

TEST_F(AttentionTest, SeesNothingWhereThereAreFewerKeysThanQueries) {
  on_each([] {
    expect_matches_reference({12, 7, 1, 2, 16}, {});
    expect_matches_reference({400, 100, 1, 1, 16}, {});
  });
}

TEST_F(AttentionTest, KeepsPackedDocumentsApart) {
  on_each([] {
    const Shape shape{700, 700, 2, 1, 16};
    AttentionOptions options;
    options.first_key = at::zeros({2, 700}, at::kInt);
    options.first_key.select(0, 0).narrow(0, 100, 600).fill_(100);
    options.first_key.select(0, 0).narrow(0, 530, 170).fill_(530);
    options.first_key.select(0, 1).narrow(0, 3, 697).fill_(3);
    expect_matches_reference(shape, options);
  });
}

TEST_F(AttentionTest, DropsTheProbabilitiesThatTheMaskNames) {
  on_each([] {
    AttentionOptions options;
    options.dropout = {.p = 0.3,
                       .key = 0x123456789ABCDEF,
                       .sample_ids = at::tensor(std::vector<std::int64_t>{5, std::int64_t{1} << 40})};
    options.head_offset = 2;
    expect_matches_reference({5, 5, 2, 3, 8}, options);
    expect_matches_reference({101, 101, 2, 1, 16}, options);
    options.causal = false;
    expect_matches_reference({17, 259, 2, 1, 16}, options);
  });
}

TEST_F(AttentionTest, StaysExactForLargeScores) {
  on_each([] {
    const at::Tensor q = at::randn({300, 1, 1, 16}) * 100, k = at::randn({300, 1, 1, 16}) * 100,
                     v = at::randn({300, 1, 1, 16});
    const auto truth = reference::attention(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), {});
    EXPECT_LT(relative_error(attention(q, k, v, {}).out, truth.out),
              2e-3);  // scores of 1e5 keep 2 digits behind the point
  });
}

TEST_F(AttentionTest, LetsNanThrough) {
  on_each([] {
    at::Tensor q = at::randn({20, 1, 1, 16}), k = at::randn({20, 1, 1, 16});
    q.select(0, 11).fill_(std::nan(""));
    const at::Tensor out = attention(q, k, k, {}).out;
    EXPECT_TRUE(out.select(0, 11).isnan().all().item<bool>());
    EXPECT_FALSE(out.select(0, 10).isnan().any().item<bool>());
  });
}

TEST_F(AttentionTest, GivesTheSameBitsOnAnyNumberOfThreads) {
  on_each([] {
    const Case c({300, 300, 1, 5, 64});
    configure_thread(1);
    const AttentionOutput one = attention(c.q, c.k, c.v, {});
    const at::Tensor dq1 = at::zeros(c.q.sizes()), dk1 = at::zeros(c.q.sizes()), dv1 = at::zeros(c.q.sizes());
    attention_backward(c.dout, c.q, c.k, c.v, one, {}, dq1, dk1, dv1);
    configure_thread(2);
    const AttentionOutput two = attention(c.q, c.k, c.v, {});
    const at::Tensor dq2 = at::zeros(c.q.sizes()), dk2 = at::zeros(c.q.sizes()), dv2 = at::zeros(c.q.sizes());
    attention_backward(c.dout, c.q, c.k, c.v, two, {}, dq2, dk2, dv2);
    EXPECT_TRUE(one.out.equal(two.out) && one.logsumexp.equal(two.logsumexp));
    EXPECT_TRUE(dq1.equal(dq2) && dk1.equal(dk2) && dv1.equal(dv2));
  });
}

TEST(AttentionReference, AgreesWithScaledDotProductAttention) {
  const at::Tensor q = at::randn({9, 2, 3, 5}, at::kDouble), k = at::randn({9, 2, 3, 5}, at::kDouble);
  const at::Tensor v = at::randn({9, 2, 3, 5}, at::kDouble);
  const auto first = [](const at::Tensor& x) { return x.permute({1, 2, 0, 3}); };
  const at::Tensor truth =
      at::scaled_dot_product_attention(first(q), first(k), first(v), {}, 0.0, true).permute({2, 0, 1, 3});
  EXPECT_LT(relative_error(reference::attention(q, k, v, {}).out, truth), 1e-13);
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
  reference::attention_backward(dout, q.flatten(2, 3), each(k), each(v), truth, options, dq, dk, dv);
  for (const at::Tensor& queries : {q, q.flatten(2, 3)}) {
    const AttentionOutput got = reference::attention(queries, k, v, options);
    EXPECT_LT(relative_error(got.out, truth.out), 1e-13);
    EXPECT_LT(relative_error(got.logsumexp, truth.logsumexp), 1e-13);
    const at::Tensor gq = at::empty_like(queries), gk = at::empty_like(k), gv = at::empty_like(v);
    reference::attention_backward(dout, queries, k, v, got, options, gq, gk, gv);
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
  reference::attention_backward(dout, x[0], x[1], x[2], forward, options, gradient[0], gradient[1], gradient[2]);
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
