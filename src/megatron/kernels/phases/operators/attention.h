#pragma once
#include "megatron/kernels/phases/attention.h"
#include "megatron/kernels/phases/attention_backward.h"
#include "megatron/kernels/phases/operators/attention_arguments.h"
#include "megatron/kernels/phases/operators/flash.h"

namespace megatron::kernels::phases {

/// Exact attention by our own kernels: on tensor cores where FlashOperators serve, else, heads of up to 128, by
/// arithmetic in float32, or of up to 64 in float64 for float64.
template <class Driver>
struct AttentionOperators {
  static AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionOptions& options) {
    check_groups(q, k);
    if (Flash::serves(q, k, v, options)) return Flash::attention(q, k, v, options);
    if (!serves(q, k, v, options)) return reference::attention(q, k, v, options);
    const std::int64_t heads = q.numel() / (q.size(0) * q.size(1) * q.size(-1));
    AttentionOutput result{at::empty({q.size(0), q.size(1), heads, q.size(-1)}, q.options()),
                           at::empty({q.size(1), heads, q.size(0)}, q.options().dtype(compute_dtype(q)))};
    launch(q, [&](auto precision, auto size) {
      using C = decltype(precision);
      PreparedAttention<AttentionArgs<C>, C> prepared(q, k, v, result, options);
      auto& a = prepared.args;
      Driver::template launch<AttentionForward<C, size()>>(a, a.batch * a.heads() * a.query_tiles());
    });
    if (options.sinks.defined()) add_sinks_(result, options.sinks);
    return result;
  }

  static void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                                 const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dbias) {
    check_groups(q, k);
    if (Flash::serves(q, k, v, options) && Flash::serves(dq, dk, dv, options) &&
        (!dbias.defined() || of_type(q, dbias, at::kFloat)))
      return Flash::attention_backward(dout, q, k, v, forward, options, dq, dk, dv, dbias);
    const bool known = serves(q, k, v, options) && serves(dq, dk, dv, options) && strided(dout) &&
                       of_type(q, forward.logsumexp, compute_dtype(q)) && forward.out.is_contiguous() &&
                       (!dbias.defined() || of_type(q, dbias, compute_dtype(q)));
    if (!known) return reference::attention_backward(dout, q, k, v, forward, options, dq, dk, dv, dbias);
    launch(q, [&](auto precision, auto size) {
      using C = decltype(precision);
      PreparedAttention<AttentionArgs<C>, C> prepared(q, k, v, forward, options);
      auto& a = prepared.args;
      const at::Tensor delta = at::empty_like(forward.logsumexp);
      a.delta = pointer<C>(delta);
      a.dout = heads_of(dout, a.ratio);
      a.dq = heads_of(dq, a.ratio);
      a.dk = heads_of(dk, 1);
      a.dv = heads_of(dv, 1);
      a.dbias = pointer<C>(dbias);
      Driver::template launch<AttentionDelta<C>>(a, blocks_for<AttentionDelta<C>>(a.batch * a.heads() * a.queries));
      Driver::template launch<AttentionKeyGradient<C, size()>>(a, a.batch * a.groups * a.key_tiles());
      Driver::template launch<AttentionQueryGradient<C, size()>>(a, a.batch * a.heads() * a.query_tiles());
      if (dbias.defined()) Driver::template launch<AttentionBiasGradient<C>>(a, a.heads() * (a.queries + a.keys - 1));
    });
  }

 private:
  using Flash = FlashOperators<Driver>;

  static bool strided(const at::Tensor& x) {
    return has_type(x.scalar_type()) && x.numel() > 0 && (x.dim() == 4 || x.dim() == 5) && x.stride(-1) == 1;
  }
  static bool serves(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options) {
    const auto alike = [&](const at::Tensor& x) {
      return x.dim() == 4 && x.scalar_type() == q.scalar_type() && x.device() == q.device();
    };
    const std::int64_t most = q.scalar_type() == at::kDouble ? 64 : 128;  // what 99 KB of shared memory hold
    return strided(q) && strided(k) && strided(v) && alike(k) && alike(v) && q.size(-1) <= most &&
           options.soft_cap == 0 && (!options.bias.defined() || options.bias.device() == q.device());
  }

  template <class Launch>
  static void launch(const at::Tensor& q, const Launch& launch) {
    using Small = std::integral_constant<int, 64>;
    if (q.scalar_type() == at::kDouble)
      launch(double(), Small());
    else if (q.size(-1) <= Small())
      launch(float(), Small());
    else
      launch(float(), std::integral_constant<int, 128>());
  }
};

}  // namespace megatron::kernels::phases
