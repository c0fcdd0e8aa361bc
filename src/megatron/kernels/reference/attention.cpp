#include "megatron/kernels/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"
#include "megatron/kernels/runtime.h"

// Stores the whole score matrix [b, g, n/g, q, k]: small shapes, other dtypes and other devices.
namespace megatron::kernels {

void check_groups(const at::Tensor& q, const at::Tensor& k) {
  const std::int64_t groups = k.size(2);
  if (q.dim() == 5 ? q.size(2) != groups : q.size(2) % groups != 0)
    throw std::logic_error("query heads that the groups of keys do not divide");
}

namespace {

/// [n] as numbers of rows [b, n, s].
at::Tensor of_heads(const at::Tensor& sinks, const AttentionOutput& rows) {
  return sinks.to(rows.logsumexp.options()).view({1, -1, 1});
}

}  // namespace

at::Tensor sink_gradient(const at::Tensor& dout, const AttentionOutput& forward, const at::Tensor& sinks) {
  const at::Tensor out = reference::up(forward.out);
  const at::Tensor delta = (reference::up(dout).view(out.sizes()) * out).sum(-1).permute({1, 2, 0});  // [b, n, s]
  const at::Tensor share = (of_heads(sinks, forward) - forward.logsumexp).exp();
  return (share * delta).sum(2).sum(0).neg().to(sinks.scalar_type());
}

void add_sinks_(const AttentionOutput& forward, const at::Tensor& sinks) {
  const at::Tensor with = at::logaddexp(forward.logsumexp, of_heads(sinks, forward));
  forward.out.mul_((forward.logsumexp - with).exp().permute({2, 0, 1}).unsqueeze(3));
  forward.logsumexp.copy_(with);
}

namespace reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// Query heads by the group of their key and value head: [s, b, g, n/g, d] -> [b, g, n/g, s, d].
at::Tensor queries_first(const at::Tensor& q, std::int64_t groups) {
  return up(q).reshape({q.size(0), q.size(1), groups, -1, q.size(-1)}).permute({1, 2, 3, 0, 4});
}
/// [k, b, g, d] -> [b, g, 1, k, d].
at::Tensor keys_first(const at::Tensor& x_kbgd) { return up(x_kbgd).permute({1, 2, 0, 3}).unsqueeze(2); }

/// The inverses; the heads of a group are summed first.
void write_queries(const at::Tensor& dq, const at::Tensor& x_bgrsd) {
  dq.copy_(x_bgrsd.permute({3, 0, 1, 2, 4}).reshape(dq.sizes()));
}
void write_keys(const at::Tensor& dk_kbgd, const at::Tensor& x_bgrkd) {
  dk_kbgd.copy_(x_bgrkd.sum(2).permute({2, 0, 1, 3}));
}

double scale_of(const at::Tensor& q, const AttentionOptions& options) {
  return options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
}

/// x [n, q + k - 1] as [n, q, k]: element (i, j) is the one at j - i + q - 1. A view.
at::Tensor by_distance(const at::Tensor& x, std::int64_t queries, std::int64_t keys) {
  const at::Tensor rows = x.contiguous();
  return rows.as_strided({x.size(0), keys, queries}, {x.size(1), 1, 1}, rows.storage_offset()).flip(2).transpose(1, 2);
}

/// The sum of x [n, q, k] over the elements of each distance: [n, q + k - 1].
at::Tensor sums_by_distance(const at::Tensor& x) {
  const std::int64_t queries = x.size(1), distances = x.size(1) + x.size(2) - 1;
  // Element (i, j) lies at j - i + queries - 1 of row i, so that each row begins one earlier in its own than the last.
  const at::Tensor rows = at::zeros({x.size(0), queries, distances}, x.options());
  rows.as_strided(x.sizes(), {queries * distances, distances - 1, 1}, queries - 1).copy_(x);
  return rows.sum(1);
}

/// Scaled scores [b, g, n/g, q, k], minus infinity where a query must not see a key.
at::Tensor scores(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& options) {
  at::Tensor s_bgrqk = at::matmul(queries_first(q, k.size(2)), keys_first(k).transpose(3, 4)) * scale_of(q, options);
  const std::int64_t queries = q.size(0), keys = k.size(0);
  if (options.soft_cap > 0) s_bgrqk.div_(options.soft_cap).tanh_().mul_(options.soft_cap);
  if (options.bias.defined())
    s_bgrqk.add_(by_distance(options.bias.to(s_bgrqk.scalar_type()), queries, keys).view(s_bgrqk.sizes().slice(1)));
  const at::Tensor key = at::arange(keys, q.options().dtype(at::kLong));
  if (options.causal) {
    const at::Tensor last = at::arange(queries, key.options()) + (keys - queries + options.ahead);
    s_bgrqk.masked_fill_(key.unsqueeze(0) > last.unsqueeze(1), kMinusInfinity);
  }
  if (options.first_key.defined()) {
    const at::Tensor first_bq = options.first_key.to(key.options());
    s_bgrqk.masked_fill_((key < first_bq.unsqueeze(2)).unsqueeze(1).unsqueeze(1), kMinusInfinity);
  }
  if (options.key_lengths.defined()) {
    const at::Tensor padding_bk = key >= options.key_lengths.to(key.options()).unsqueeze(1);
    s_bgrqk.masked_fill_(padding_bk.view({-1, 1, 1, 1, keys}), kMinusInfinity);
  }
  return s_bgrqk;
}

/// exp(s - logsumexp), with zeros in the rows of queries that see no key.
at::Tensor probabilities(const at::Tensor& s_bgrqk, const at::Tensor& logsumexp_bnq) {
  const at::Tensor shift = logsumexp_bnq.masked_fill(logsumexp_bnq == kMinusInfinity, 0);
  return (s_bgrqk - shift.view({s_bgrqk.size(0), s_bgrqk.size(1), s_bgrqk.size(2), -1, 1})).exp();
}

at::Tensor mask_like(const at::Tensor& p_bgrqk, const AttentionOptions& options) {
  return reference::attention_dropout_mask(options.dropout, p_bgrqk.size(0), p_bgrqk.size(1) * p_bgrqk.size(2),
                                           options.head_offset, p_bgrqk.size(3), p_bgrqk.size(4), p_bgrqk.scalar_type(),
                                           p_bgrqk.device())
      .view(p_bgrqk.sizes());
}

}  // namespace

AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options) {
  check_groups(q, k);
  const at::Tensor s_bgrqk = scores(q, k, options);
  AttentionOutput result;
  result.logsumexp = s_bgrqk.logsumexp(4).flatten(1, 2);
  if (options.sinks.defined()) result.logsumexp = at::logaddexp(result.logsumexp, of_heads(options.sinks, result));
  at::Tensor p_bgrqk = probabilities(s_bgrqk, result.logsumexp);
  if (options.dropout.p > 0) p_bgrqk = p_bgrqk * mask_like(p_bgrqk, options);
  const at::Tensor out_sbgrd = at::matmul(p_bgrqk, keys_first(v)).permute({3, 0, 1, 2, 4});
  result.out = out_sbgrd.flatten(2, 3).to(q.scalar_type()).contiguous();
  return result;
}

// Gathers them; a device's own attention then is faster than this file's.
AttentionOutput attention_over_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& blocks, std::int64_t keys, const AttentionOptions& options) {
  const auto side_by_side = [&](const at::Tensor& x) {
    return x.index_select(0, blocks).flatten(0, 1).narrow(0, 0, keys).unsqueeze(1);
  };
  const bool plain = q.is_cpu() && !emulates_cuda();
  return (plain ? reference::attention : on(q).attention)(q, side_by_side(k), side_by_side(v), options);
}

void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                        const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dbias) {
  check_groups(q, k);
  const std::int64_t groups = k.size(2);
  const at::Tensor s_bgrqk = scores(q, k, options), p_bgrqk = probabilities(s_bgrqk, forward.logsumexp);
  const at::Tensor dout_bgrsd = queries_first(dout, groups);
  at::Tensor dropped = p_bgrqk, dp_bgrqk = at::matmul(dout_bgrsd, keys_first(v).transpose(3, 4));
  if (options.dropout.p > 0) {
    const at::Tensor mask = mask_like(p_bgrqk, options);
    dropped = p_bgrqk * mask;
    dp_bgrqk = dp_bgrqk * mask;
  }
  const at::Tensor delta = (dout_bgrsd * queries_first(forward.out, groups)).sum(4, true);
  at::Tensor ds_bgrqk = p_bgrqk * (dp_bgrqk - delta);
  if (dbias.defined()) dbias.copy_(sums_by_distance(ds_bgrqk.sum(0).flatten(0, 1)));
  if (options.soft_cap > 0)  // hidden scores are minus infinity, and their gradient 0
    ds_bgrqk = ds_bgrqk * (1 - s_bgrqk.div(options.soft_cap).clamp_min(-1).square());
  ds_bgrqk = ds_bgrqk * scale_of(q, options);
  const at::Tensor dq_bgrsd = at::matmul(ds_bgrqk, keys_first(k));
  const at::Tensor dk_bgrkd = at::matmul(ds_bgrqk.transpose(3, 4), queries_first(q, groups));
  write_keys(dv, at::matmul(dropped.transpose(3, 4), dout_bgrsd));
  write_keys(dk, dk_bgrkd);
  write_queries(dq, dq_bgrsd);
}

}  // namespace reference
}  // namespace megatron::kernels
