#include "megatron/kernels/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/index_add.h>

#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

namespace megatron::kernels::reference {
namespace {

/// to[rows[i]] += from[i], in a fixed order.
void add_rows(const at::Tensor& to, const at::Tensor& rows, const at::Tensor& from) {
  if (to.is_cpu()) {
    to.index_add_(0, rows, from);  // one thread, in order
  } else {
    to.index_put_({rows}, from, /*accumulate=*/true);  // sorted, so deterministic
  }
}

}  // namespace

at::Tensor embedding(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t begin) {
  const at::Tensor row = tokens - begin;
  const at::Tensor elsewhere = (row < 0).logical_or(row >= weight.size(0));
  at::Tensor out = weight.index_select(0, row.clamp(0, weight.size(0) - 1).flatten());
  out.masked_fill_(elsewhere.view({-1, 1}), 0);
  return out.view({tokens.size(0), tokens.size(1), weight.size(1)});
}

void embedding_backward(const at::Tensor& grad_weight, const at::Tensor& tokens, const at::Tensor& dy,
                        std::int64_t begin) {
  const at::Tensor all_rows = (tokens - begin).flatten();
  const at::Tensor here = (all_rows >= 0).logical_and(all_rows < grad_weight.size(0)).nonzero().squeeze(1);
  const at::Tensor rows = all_rows.index_select(0, here);
  const at::Tensor dy_here =
      dy.reshape({all_rows.size(0), dy.size(-1)}).index_select(0, here).to(compute_type(grad_weight));
  if (grad_weight.scalar_type() != compute_type(grad_weight)) {  // sum in float32, round once
    const auto [touched, index, counts] = at::_unique2(rows, true, true);
    const at::Tensor sums = up(grad_weight.index_select(0, touched));
    add_rows(sums, index, dy_here);
    grad_weight.index_copy_(0, touched, sums.to(grad_weight.scalar_type()));
  } else {
    add_rows(grad_weight, rows, dy_here);
  }
}

}  // namespace megatron::kernels::reference
