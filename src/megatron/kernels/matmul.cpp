#include "megatron/kernels/matmul.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

namespace megatron::kernels {
namespace {

/// [.., k] as [rows, k]; copies only what is not laid out row by row.
at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

at::Tensor with_last_dim(const at::Tensor& y_rows, const at::Tensor& like) {
  std::vector<std::int64_t> shape(like.sizes().begin(), like.sizes().end());
  shape.back() = y_rows.size(1);
  return y_rows.view(shape);
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& w) {
  const c10::NoGradGuard no_grad;
  return with_last_dim(at::mm(rows_of(x), w.t()), x);
}

at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& w) {
  const c10::NoGradGuard no_grad;
  return with_last_dim(at::mm(rows_of(dy), w), dy);
}

void linear_weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta) {
  const c10::NoGradGuard no_grad;
  at::Tensor target = grad_w;
  const at::Tensor dy_t = rows_of(dy).to(grad_w.scalar_type()).t(), x_rows = rows_of(x).to(grad_w.scalar_type());
  if (beta == 0) {
    at::mm_out(target, dy_t, x_rows);
  } else {
    at::addmm_out(target, grad_w, dy_t, x_rows, beta);
  }
}

}  // namespace megatron::kernels
