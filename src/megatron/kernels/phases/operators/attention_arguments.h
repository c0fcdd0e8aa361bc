#pragma once
#include <cmath>

#include "megatron/kernels/phases/attention_tiles.h"
#include "megatron/kernels/phases/operators/arguments.h"

namespace megatron::kernels::phases {

/// x [s, b, n, d] or [s, b, g, n/g, d]; `ratio` heads a group.
inline Heads heads_of(const at::Tensor& x, std::int64_t ratio) {
  Heads heads{.data = out(x), .stride_s = x.stride(0), .stride_b = x.stride(1)};
  heads.stride_head = x.dim() == 5 ? x.stride(3) : x.stride(2);
  heads.stride_group = x.dim() == 5 ? x.stride(2) : ratio * x.stride(2);
  return heads;
}

/// A launch's arguments and what they point to.
template <class Args, class C>
class PreparedAttention {
 public:
  PreparedAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOutput& forward,
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
  Args args;

 private:
  LaunchedMask mask_;
  at::Tensor first_key_, key_lengths_, bias_;
};

}  // namespace megatron::kernels::phases
