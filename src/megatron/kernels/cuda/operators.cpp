#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <c10/cuda/CUDAStream.h>

#include "megatron/kernels/cuda/attention.h"
#include "megatron/kernels/cuda/epilogue.h"
#include "megatron/kernels/cuda/grouped.h"
#include "megatron/kernels/cuda/launch.h"
#include "megatron/kernels/phases/operators/table.h"
#include "megatron/kernels/reference.h"

// The plugin's table: the kernels of phases/ by their device driver, and products by the library's kernels. What is
// null the reference computes, by ATen's kernels.
namespace megatron::kernels {
namespace {

/// The bias is added to the sums, before they are rounded.
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, PackedWeight* packed, const at::Tensor& bias) {
  if (!bias.defined() || bias.scalar_type() != x.scalar_type()) return reference::linear(x, w, packed, bias);
  auto shape = x.sizes().vec();
  shape.back() = w.size(0);
  return at::addmm(bias, x.reshape({-1, x.size(-1)}), w.t()).view(shape);
}

/// Products of 16-bit matrices are added up in float32 in the gradient's buffer, without a copy of either.
void linear_weight_gradient(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta) {
  const bool wide_sum = grad_w.scalar_type() == at::kFloat && x.scalar_type() == dy.scalar_type() &&
                        (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
  if (!wide_sum) return reference::linear_weight_gradient(grad_w, dy, x, beta);
  at::Tensor target = grad_w;
  const at::Tensor dy_t = dy.reshape({-1, dy.size(-1)}).t(), rows = x.reshape({-1, x.size(-1)});
  if (beta == 0)
    at::mm_out(target, dy_t, rows, at::kFloat);
  else
    at::addmm_out(target, grad_w, dy_t, rows, at::kFloat, beta);
}

void linear_gradients(const at::Tensor& grad_w, const at::Tensor& dy, const at::Tensor& x, double beta,
                      const at::Tensor& grad_bias, double bias_beta) {
  if (cuda::linear_gradients(grad_w, dy, x, beta, grad_bias, bias_beta)) return;
  linear_weight_gradient(grad_w, dy, x, beta);
  phases::NormOperators<cuda::DeviceDriver>::accumulate_bias_gradient(grad_bias, dy, bias_beta);
}

struct OneByOne {
  static constexpr auto grouped_linear = reference::grouped_linear;
  static constexpr auto grouped_linear_activation = reference::grouped_linear_activation;
  static constexpr auto grouped_input_gradient = reference::grouped_input_gradient;
  static int capability() { return at::cuda::getCurrentDeviceProperties()->major; }
};

constexpr Operators table() {
  Operators all = phases::operators_of<cuda::DeviceDriver>();
  all.linear = linear;
  all.linear_weight_gradient = linear_weight_gradient;
  all.linear_gradients = linear_gradients;
  all.linear_activation = cuda::linear_activation;
  all.linear_activation_gradient = cuda::linear_activation_gradient;
  using Grouped = cuda::GroupedOperators<OneByOne>;
  all.grouped_linear = Grouped::grouped_linear;
  all.grouped_linear_activation = Grouped::grouped_linear_activation;
  all.grouped_input_gradient = Grouped::grouped_input_gradient;
  all.attention = cuda::attention;
  all.attention_backward = cuda::attention_backward;
  return all;
}
constexpr Operators kCudaOperators = table();

}  // namespace

void* cuda::current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

/// Looked up by parallel::load_cuda(). `size`: set to that of the table.
extern "C" __attribute__((visibility("default"))) const Operators* megatron_cuda_operators(std::size_t* size) {
  *size = sizeof(Operators);
  set_cuda_operators(kCudaOperators, *size);  // operators made of others find these: the plugin has a table of its own
  return &kCudaOperators;
}

}  // namespace megatron::kernels
