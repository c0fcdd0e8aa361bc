#include "megatron/kernels/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <cmath>
#include <limits>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

// Stores the whole score matrix [b, n, q, k]: small shapes, other dtypes and other devices.
namespace megatron::kernels::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

at::Tensor heads_first(const at::Tensor& x_sbnd) { return up(x_sbnd).permute({1, 2, 0, 3}); }
at::Tensor positions_first(const at::Tensor& x_bnsd) { return x_bnsd.permute({2, 0, 1, 3}); }

double scale_of(const at::Tensor& q, const AttentionOptions& options) {
  return options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(q.size(3)));
}

/// Scaled scores [b, n, q, k], minus infinity where a query must not see a key.
at::Tensor scores(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& options) {
  at::Tensor s_bnqk = at::matmul(heads_first(q), heads_first(k).transpose(2, 3)) * scale_of(q, options);
  const std::int64_t queries = q.size(0), keys = k.size(0);
  const at::Tensor key = at::arange(keys, q.options().dtype(at::kLong));
  if (options.causal) {
    const at::Tensor last = at::arange(queries, key.options()) + (keys - queries);
    s_bnqk.masked_fill_(key.unsqueeze(0) > last.unsqueeze(1), kMinusInfinity);
  }
  if (options.first_key.defined()) {
    const at::Tensor first_bq = options.first_key.to(key.options());
    s_bnqk.masked_fill_((key < first_bq.unsqueeze(2)).unsqueeze(1), kMinusInfinity);
  }
  return s_bnqk;
}

/// exp(s - logsumexp), with zeros in the rows of queries that see no key.
at::Tensor probabilities(const at::Tensor& s_bnqk, const at::Tensor& logsumexp_bnq) {
  return (s_bnqk - logsumexp_bnq.masked_fill(logsumexp_bnq == kMinusInfinity, 0).unsqueeze(3)).exp();
}

at::Tensor mask_like(const at::Tensor& p_bnqk, const AttentionOptions& options) {
  return reference::attention_dropout_mask(options.dropout, p_bnqk.size(0), p_bnqk.size(1), options.head_offset,
                                           p_bnqk.size(2), p_bnqk.size(3), p_bnqk.scalar_type(), p_bnqk.device());
}

}  // namespace

AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options) {
  const at::Tensor s_bnqk = scores(q, k, options);
  AttentionOutput result;
  result.logsumexp = s_bnqk.logsumexp(3);
  at::Tensor p_bnqk = probabilities(s_bnqk, result.logsumexp);
  if (options.dropout.p > 0) p_bnqk = p_bnqk * mask_like(p_bnqk, options);
  result.out = positions_first(at::matmul(p_bnqk, heads_first(v))).contiguous().to(q.scalar_type());
  return result;
}

void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                        const at::Tensor& dk, const at::Tensor& dv) {
  const at::Tensor p_bnqk = probabilities(scores(q, k, options), forward.logsumexp);
  const at::Tensor dout_bnsd = heads_first(dout);
  at::Tensor dropped = p_bnqk, dp_bnqk = at::matmul(dout_bnsd, heads_first(v).transpose(2, 3));
  if (options.dropout.p > 0) {
    const at::Tensor mask = mask_like(p_bnqk, options);
    dropped = p_bnqk * mask;
    dp_bnqk = dp_bnqk * mask;
  }
  dv.copy_(positions_first(at::matmul(dropped.transpose(2, 3), dout_bnsd)));
  const at::Tensor delta = (dout_bnsd * heads_first(forward.out)).sum(3, true);
  const at::Tensor ds_bnqk = p_bnqk * (dp_bnqk - delta) * scale_of(q, options);
  const at::Tensor dq_bnsd = at::matmul(ds_bnqk, heads_first(k));
  dk.copy_(positions_first(at::matmul(ds_bnqk.transpose(2, 3), heads_first(q))));
  dq.copy_(positions_first(dq_bnsd));
}

}  // namespace megatron::kernels::reference
