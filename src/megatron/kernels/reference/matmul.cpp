#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <vector>

#include "megatron/kernels/groups.h"
#include "megatron/kernels/quantized/blocks.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels::reference {
namespace {

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

at::Tensor product(const at::Tensor& x, const at::Tensor& b) {
  std::vector<std::int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = b.size(1);
  return at::mm(rows_of(x), b).view(shape);
}

/// x w^T, or with what w was replaced by.
at::Tensor forward_product(const at::Tensor& x, const at::Tensor& w, const PackedWeight* packed) {
  const bool in_blocks = packed != nullptr && packed->quantized() != nullptr;
  return in_blocks ? kernels::linear(x, *packed->quantized()) : product(x, w.t());
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, PackedWeight* packed, const at::Tensor& bias) {
  at::Tensor y = forward_product(x, w, packed);
  return bias.defined() ? y.add_(bias) : y;
}

at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& w, PackedWeight*) { return product(dy, w); }

void linear_weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta) {
  at::Tensor target = grad_w;
  const at::Tensor dy_t = rows_of(dy).to(grad_w.scalar_type()).t(), wide_x = rows_of(x).to(grad_w.scalar_type());
  if (beta == 0)
    at::mm_out(target, dy_t, wide_x);
  else
    at::addmm_out(target, grad_w, dy_t, wide_x, beta);
}

at::Tensor grouped_linear(const at::Tensor& x, const Groups& groups) {
  at::Tensor y = at::empty({x.size(0), groups.weights.front().size(0)}, x.options());
  for_each_group(groups, [&](std::size_t g, std::int64_t begin, std::int64_t rows) {
    at::Tensor part = y.narrow(0, begin, rows);
    at::mm_out(part, x.narrow(0, begin, rows), groups.weights[g].t());
    if (!groups.biases.empty()) part.add_(groups.biases[g]);
  });
  return y;
}

ActivatedOutput grouped_linear_activation(const at::Tensor& x, const Groups& groups, Activation form, bool gated) {
  const at::Tensor u = reference::grouped_linear(x, groups);
  return {u, gated ? reference::gated_activation(u, form) : reference::activation(u, form)};
}

at::Tensor grouped_input_gradient(const at::Tensor& dy, const Groups& groups) {
  at::Tensor dx = at::empty({dy.size(0), groups.weights.front().size(1)}, dy.options());
  for_each_group(groups, [&](std::size_t g, std::int64_t begin, std::int64_t rows) {
    at::Tensor part = dx.narrow(0, begin, rows);
    at::mm_out(part, dy.narrow(0, begin, rows), groups.weights[g]);
  });
  return dx;
}

void grouped_weight_gradient(const Groups& gradients, const at::Tensor& dy, const at::Tensor& x,
                             const std::vector<double>& betas) {
  for (std::size_t g = 0; g < gradients.weights.size(); ++g)
    if (gradients.offsets[g] == gradients.offsets[g + 1] && betas[g] == 0) gradients.weights[g].zero_();
  for_each_group(gradients, [&](std::size_t g, std::int64_t begin, std::int64_t rows) {
    reference::linear_weight_gradient(gradients.weights[g], dy.narrow(0, begin, rows), x.narrow(0, begin, rows),
                                      betas[g]);
  });
}

ActivatedOutput linear_activation(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, Activation form,
                                  bool gated, PackedWeight* packed) {
  at::Tensor u = forward_product(x, w, packed);
  at::Tensor y = gated ? reference::bias_gated_activation(u, bias, form) : reference::bias_activation(u, bias, form);
  return {u, y};
}

ActivatedOutput linear_activation_gradient(const at::Tensor& dz, const at::Tensor& w, const at::Tensor& u,
                                           Activation form, bool gated, bool again, PackedWeight*) {
  const at::Tensor dy = product(dz, w);
  ActivatedOutput out{
      gated ? reference::gated_activation_backward(dy, u, form) : reference::activation_backward(dy, u, form), {}};
  if (again) out.y = gated ? reference::gated_activation(u, form) : reference::activation(u, form);
  return out;
}

}  // namespace megatron::kernels::reference
