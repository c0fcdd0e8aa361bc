#pragma once
#include <cmath>

#include "megatron/kernels/phases/attention.h"
#include "megatron/kernels/phases/attention_backward.h"
#include "megatron/kernels/phases/operators/arguments.h"

namespace megatron::kernels::phases {

/// Exact attention by our own kernels, heads of up to 128.
template <class Driver>
struct AttentionOperators {
  static AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionOptions& options) {
    check_groups(q, k);
    if (!serves(q, k, v, options)) return reference::attention(q, k, v, options);
    const std::int64_t heads = q.numel() / (q.size(0) * q.size(1) * q.size(-1));
    AttentionOutput result{at::empty({q.size(0), q.size(1), heads, q.size(-1)}, q.options()),
                           at::empty({q.size(1), heads, q.size(0)}, q.options().dtype(compute_dtype(q)))};
    launch(q, [&](auto precision, auto size) {
      using C = decltype(precision);
      Prepared<C> prepared(q, k, v, result, options);
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
    const bool known = serves(q, k, v, options) && serves(dq, dk, dv, options) && strided(dout) &&
                       of_type(q, forward.logsumexp, compute_dtype(q)) && forward.out.is_contiguous() &&
                       (!dbias.defined() || of_type(q, dbias, compute_dtype(q)));
    if (!known) return reference::attention_backward(dout, q, k, v, forward, options, dq, dk, dv, dbias);
    launch(q, [&](auto precision, auto size) {
      using C = decltype(precision);
      Prepared<C> prepared(q, k, v, forward, options);
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

  /// x [s, b, n, d] or [s, b, g, n/g, d]; `ratio` heads a group.
  static Heads heads_of(const at::Tensor& x, std::int64_t ratio) {
    Heads heads{.data = out(x), .stride_s = x.stride(0), .stride_b = x.stride(1)};
    heads.stride_head = x.dim() == 5 ? x.stride(3) : x.stride(2);
    heads.stride_group = x.dim() == 5 ? x.stride(2) : ratio * x.stride(2);
    return heads;
  }

  /// A launch's arguments and what they point to.
  template <class C>
  struct Prepared {
    Prepared(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOutput& forward,
             const AttentionOptions& options)
        : mask_(options.dropout, k.size(0), q.size(1), q.device()) {
      args.queries = q.size(0);
      args.keys = k.size(0);
      args.batch = q.size(1);
      args.groups = k.size(2);
      args.d = q.size(-1);
      args.ratio = q.numel() / (q.size(0) * q.size(1) * args.groups * args.d);
      args.q = heads_of(q, args.ratio);
      args.k = heads_of(k, 1);
      args.v = heads_of(v, 1);
      args.out = heads_of(forward.out, args.ratio);
      args.logsumexp = pointer<C>(forward.logsumexp);
      args.scale = static_cast<C>(options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(args.d)));
      args.causal = options.causal;
      args.ahead = options.ahead;
      args.mask = mask_.mask;
      args.mask_queries = options.dropout.positions_or(args.queries);
      args.mask.position_offset = options.head_offset * args.mask_queries + options.dropout.position_offset;
      args.mask.jump = 0;
      const auto ints = at::TensorOptions().dtype(at::kInt).device(q.device());
      if (options.first_key.defined()) {
        first_key_ = options.first_key.to(ints).contiguous();
        args.first_key = const_pointer<std::int32_t>(first_key_);
      }
      if (options.key_lengths.defined()) {
        key_lengths_ = options.key_lengths.to(ints).contiguous();
        args.key_lengths = const_pointer<std::int32_t>(key_lengths_);
      }
      if (options.bias.defined()) {
        bias_ = options.bias.to(compute_dtype(q)).contiguous();
        args.bias = const_pointer<C>(bias_);
      }
    }
    AttentionArgs<C> args;

   private:
    LaunchedMask mask_;
    at::Tensor first_key_, key_lengths_, bias_;
  };

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
