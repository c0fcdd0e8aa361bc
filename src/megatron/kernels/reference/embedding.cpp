#include "megatron/kernels/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_add.h>

#include "megatron/kernels/reference.h"

namespace megatron::kernels::reference {

at::Tensor embedding(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t begin) {
  const at::Tensor row = tokens - begin;
  const at::Tensor elsewhere = (row < 0).logical_or(row >= weight.size(0));
  at::Tensor out = weight.index_select(0, row.clamp(0, weight.size(0) - 1).flatten());
  out.masked_fill_(elsewhere.view({-1, 1}), 0);
  return out.view({tokens.size(0), tokens.size(1), weight.size(1)});
}

void embedding_backward(const at::Tensor& grad_weight, const at::Tensor& tokens, const at::Tensor& dy,
                        std::int64_t begin) {
  const at::Tensor row = (tokens - begin).flatten();
  const at::Tensor here = (row >= 0).logical_and(row < grad_weight.size(0)).nonzero().squeeze(1);
  const at::Tensor dy_here = dy.reshape({row.size(0), dy.size(-1)}).index_select(0, here).to(grad_weight.scalar_type());
  if (grad_weight.is_cpu()) {
    grad_weight.index_add_(0, row.index_select(0, here), dy_here);  // one thread, in order
  } else {
    grad_weight.index_put_({row.index_select(0, here)}, dy_here, /*accumulate=*/true);  // sorted, so deterministic
  }
}

}  // namespace megatron::kernels::reference
