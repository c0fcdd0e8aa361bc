#include "megatron/kernels/activation.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "megatron/kernels/cpu/elementwise.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

/// Calls run(begin, count) over [0, total) in blocks that a thread keeps in its first cache.
template <class Run>
void in_blocks(std::int64_t total, const Run& run) {
  constexpr std::int64_t kBlock = 8192;
  cpu::for_each_block((total + kBlock - 1) / kBlock, [&](std::int64_t i, int) {
    run(i * kBlock, static_cast<std::size_t>(std::min(kBlock, total - i * kBlock)));
  });
}

bool is_gelu(Activation form) { return form == Activation::GeluTanh || form == Activation::GeluErf; }

}  // namespace

at::Tensor bias_activation(at::Tensor x, const at::Tensor& bias, Activation form) {
  const c10::NoGradGuard no_grad;
  if (!is_gelu(form) || !cpu::fast(x) || !cpu::fast_or_absent(bias))
    return reference::bias_activation(std::move(x), bias, form);
  at::Tensor y = at::empty_like(x);
  float *x_data = x.mutable_data_ptr<float>(), *y_data = y.mutable_data_ptr<float>();
  const float* bias_data = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  const std::int64_t features = x.size(-1);
  cpu::for_each_block(features > 0 ? x.numel() / features : 0, [&](std::int64_t row, int) {
    cpu::bias_gelu_row(x_data + row * features, bias_data, y_data + row * features, static_cast<std::size_t>(features),
                       form == Activation::GeluTanh);
  });
  return y;
}

at::Tensor activation_backward(at::Tensor dy, const at::Tensor& u, Activation form) {
  const c10::NoGradGuard no_grad;
  if (!is_gelu(form) || !cpu::all_fast(dy, u)) return reference::activation_backward(std::move(dy), u, form);
  float* dy_data = dy.mutable_data_ptr<float>();
  const float* u_data = u.const_data_ptr<float>();
  in_blocks(dy.numel(), [&](std::int64_t begin, std::size_t count) {
    cpu::gelu_backward_run(dy_data + begin, u_data + begin, count, form == Activation::GeluTanh);
  });
  return dy;
}

at::Tensor activation(const at::Tensor& u, Activation form) {
  const c10::NoGradGuard no_grad;
  if (!is_gelu(form) || !cpu::fast(u)) return reference::activation(u, form);
  at::Tensor y = at::empty_like(u);
  float* y_data = y.mutable_data_ptr<float>();
  const float* u_data = u.const_data_ptr<float>();
  in_blocks(u.numel(), [&](std::int64_t begin, std::size_t count) {
    cpu::gelu_run(u_data + begin, y_data + begin, count, form == Activation::GeluTanh);
  });
  return y;
}

at::Tensor bias_gated_activation(at::Tensor x, const at::Tensor& bias, Activation form) {
  const c10::NoGradGuard no_grad;
  return reference::bias_gated_activation(std::move(x), bias, form);
}

at::Tensor gated_activation_backward(const at::Tensor& dy, const at::Tensor& u, Activation form) {
  const c10::NoGradGuard no_grad;
  return reference::gated_activation_backward(dy, u, form);
}

at::Tensor gated_activation(const at::Tensor& u, Activation form) {
  const c10::NoGradGuard no_grad;
  return reference::gated_activation(u, form);
}

}  // namespace megatron::kernels
