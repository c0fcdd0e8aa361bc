#include "megatron/kernels/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mv.h>

#include <vector>

#include "megatron/kernels/matmul.h"
#include "megatron/kernels/reference.h"
#include "megatron/kernels/reference/precision.h"

namespace megatron::kernels {

void grouped_bias_gradient(const std::vector<at::Tensor>& biases, const std::vector<std::int64_t>& offsets,
                           const at::Tensor& dy, const at::Tensor& weights, const std::vector<double>& betas) {
  const at::ScalarType wide = reference::compute_type(dy);
  for (std::size_t g = 0; g < biases.size(); ++g) {
    const at::Tensor& into = biases[g];
    if (betas[g] == 0) into.zero_();
    const std::int64_t begin = offsets[g], rows = offsets[g + 1] - begin;
    if (rows == 0) continue;
    const at::Tensor own = dy.narrow(0, begin, rows);
    into.add_(weights.defined() ? at::mv(own.to(wide).t(), weights.narrow(0, begin, rows)) : own.sum(0, false, wide));
  }
}

namespace reference {

WeightedGradient weighted_activation_backward(const at::Tensor& dy, const at::Tensor& u, const at::Tensor& weights,
                                              Activation form, bool gated) {
  const at::ScalarType wide = compute_type(u), stored = u.scalar_type();
  const at::Tensor wide_u = u.to(wide), wide_dy = dy.to(wide);
  const at::Tensor y = gated ? reference::gated_activation(wide_u, form) : reference::activation(wide_u, form);
  const at::Tensor scaled_dy = weights.defined() ? wide_dy * weights.unsqueeze(1) : wide_dy.clone();
  const at::Tensor du = gated ? reference::gated_activation_backward(scaled_dy, wide_u, form)
                              : reference::activation_backward(scaled_dy, wide_u, form);
  return {.du = du.to(stored),
          .y = (weights.defined() ? y * weights.unsqueeze(1) : y).to(stored),
          .weights = weights.defined() ? (wide_dy * y).sum(-1) : at::Tensor()};
}

at::Tensor combined_rows(const at::Tensor& rows, const at::Tensor& index, const at::Tensor& weights) {
  const at::Tensor absent = index.lt(0).unsqueeze(2);
  at::Tensor each = rows.index_select(0, index.clamp_min(0).reshape({-1}))
                        .to(compute_type(rows))
                        .view({index.size(0), index.size(1), rows.size(1)})
                        .masked_fill(absent, 0);
  if (weights.defined()) each = each * weights.unsqueeze(2);
  return each.sum(1).to(rows.scalar_type());
}

}  // namespace reference
}  // namespace megatron::kernels
