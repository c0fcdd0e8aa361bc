#pragma once
#include "megatron/kernels/phases/copy.h"
#include "megatron/kernels/phases/operators/arguments.h"

namespace megatron::kernels::phases {

/// to = from, both [s, b, n, d] or [s, b, g, r, d] of any strides: 16 bytes at a time where heads lie so.
template <class Driver>
void copy_heads(const at::Tensor& to, const at::Tensor& from) {
  const std::int64_t heads = to.size(-1) > 0 ? to.numel() / to.size(-1) : 0;
  const bool known = to.scalar_type() == from.scalar_type() && has_type(to.scalar_type()) && heads > 0 &&
                     to.device() == from.device() && (to.dim() == 4 || to.dim() == 5) && to.sizes() == from.sizes() &&
                     to.stride(-1) == 1 && from.stride(-1) == 1;
  if (!known) {
    to.copy_(from);
    return;
  }
  with_type(to.scalar_type(), [&](auto type) {
    using T = decltype(type);
    using Kernel = CopyHeads<T>;
    typename Kernel::Args args{.from = const_pointer<T>(from), .to = pointer<T>(to), .heads = heads, .d = to.size(-1)};
    for (std::int64_t i = 0; i + 1 < to.dim(); ++i) {
      args.from_strides[i] = from.stride(i);
      args.to_strides[i] = to.stride(i);
    }
    args.b = Divisor(to.size(1));
    args.g = Divisor(to.size(2));
    args.r = Divisor(to.dim() == 5 ? to.size(3) : 1);
    args.chunks = Divisor(chunks_of<T>(args.d));
    Driver::template launch<Kernel>(args, blocks_for<Kernel>(heads * args.chunks.by));
  });
}

}  // namespace megatron::kernels::phases
