#include "megatron/kernels/cuda/attention.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/_cudnn_attention_backward.h>
#include <ATen/ops/_cudnn_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <tuple>

#include "megatron/kernels/cuda/attention_choice.h"
#include "megatron/kernels/cuda/launch.h"
#include "megatron/kernels/phases/operators/attention.h"
#include "megatron/kernels/phases/operators/copy.h"

namespace megatron::kernels::cuda {
namespace {

using Own = phases::AttentionOperators<DeviceDriver>;

AttentionKernel choose(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& options) {
  if (q.numel() == 0) return AttentionKernel::Own;
  const AttentionCall call{.capability = at::cuda::getCurrentDeviceProperties()->major,
                           .sixteen_bits = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf,
                           .deterministic = at::globalContext().deterministicCuDNN(),
                           .dropout = options.dropout.p > 0,
                           .first_key = options.first_key.defined() || options.ahead > 0,
                           .key_lengths = options.key_lengths.defined(),
                           .bias = options.bias.defined(),
                           .soft_cap = options.soft_cap > 0,
                           .head_size = q.size(-1),
                           .queries = q.size(0),
                           .keys = k.size(0),
                           .causal = options.causal};
  return attention_kernel(call);
}

std::optional<double> scale_of(const AttentionOptions& options) {
  return options.scale != 0 ? std::optional(options.scale) : std::nullopt;
}

/// [s, b, n, d] or [s, b, g, n/g, d] -> [b, s, n, d].
at::Tensor batch_first(const at::Tensor& x) { return (x.dim() == 5 ? x.flatten(2, 3) : x).transpose(0, 1); }

/// While it lives libtorch sums attention's gradient in one order, or in any without a warning. Elsewhere deterministic
/// algorithms are only asked for (parallel/cuda.h).
class Order {
 public:
  explicit Order(bool one) { at::globalContext().setDeterministicAlgorithms(one, /*warn_only=*/false); }
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;
  ~Order() { at::globalContext().setDeterministicAlgorithms(asked_, warns_); }

 private:
  bool asked_ = at::globalContext().deterministicAlgorithms();
  bool warns_ = at::globalContext().deterministicAlgorithmsWarnOnly();
};

/// x [b, s, n, d] into a view of [s, b, n, d] or [s, b, g, n/g, d].
void write(const at::Tensor& to, const at::Tensor& x_bsnd) {
  const at::Tensor x = x_bsnd.transpose(0, 1);
  phases::copy_heads<DeviceDriver>(to, to.dim() == 5 ? x.unflatten(2, {to.size(2), to.size(3)}) : x);
}
/// [b, s, n, d] -> [b, n, s, d], and back.
at::Tensor swap(const at::Tensor& x) { return x.transpose(1, 2); }

at::Tensor sequence_first(const at::Tensor& x_bsnd) {
  const at::Tensor x = x_bsnd.transpose(0, 1);
  if (x.is_contiguous()) return x;
  const at::Tensor made = at::empty(x.sizes(), x.options());
  phases::copy_heads<DeviceDriver>(made, x);
  return made;
}

AttentionOutput by_flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o) {
  const auto result =
      at::_flash_attention_forward(batch_first(q), batch_first(k), batch_first(v), {}, {}, q.size(0), k.size(0),
                                   /*dropout_p=*/0, o.causal, /*return_debug_mask=*/false, scale_of(o));
  return {sequence_first(std::get<0>(result)), std::get<1>(result)};
}
AttentionOutput by_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o) {
  const auto result = at::_cudnn_attention_forward(
      swap(batch_first(q)), swap(batch_first(k)), swap(batch_first(v)), {}, {}, {}, q.size(0), k.size(0),
      /*compute_log_sumexp=*/true, /*dropout_p=*/0, o.causal, /*return_debug_mask=*/false, scale_of(o));
  return {sequence_first(swap(std::get<0>(result))), std::get<1>(result).squeeze(-1)};
}

}  // namespace

AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options) {
  const AttentionKernel kernel = choose(q, k, options);
  if (kernel == AttentionKernel::Own) return Own::attention(q, k, v, options);
  AttentionOutput made = kernel == AttentionKernel::CuDnn ? by_cudnn(q, k, v, options) : by_flash(q, k, v, options);
  if (options.sinks.defined()) add_sinks_(made, options.sinks);
  return made;
}

void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                        const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dbias) {
  const AttentionKernel kernel = choose(q, k, options);
  if (kernel == AttentionKernel::Own)
    return Own::attention_backward(dout, q, k, v, forward, options, dq, dk, dv, dbias);
  const at::Tensor none = at::empty({0}, q.options().dtype(at::kLong));  // of dropout, which there is none of
  std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients;
  const Order order(at::globalContext().deterministicCuDNN());
  if (kernel == AttentionKernel::CuDnn) {
    // Its plan is looked up by the strides of q, k and v: the others must always have the same.
    auto [q_gradient, k_gradient, v_gradient] = at::_cudnn_attention_backward(
        swap(batch_first(dout.contiguous())), swap(batch_first(q)), swap(batch_first(k)), swap(batch_first(v)),
        swap(batch_first(forward.out.contiguous())), forward.logsumexp.contiguous().unsqueeze(-1), none, none, {}, {},
        {}, q.size(0), k.size(0),
        /*dropout_p=*/0, options.causal, scale_of(options));
    gradients = {swap(q_gradient), swap(k_gradient), swap(v_gradient)};
  } else {
    gradients = at::_flash_attention_backward(batch_first(dout), batch_first(q), batch_first(k), batch_first(v),
                                              batch_first(forward.out), forward.logsumexp, {}, {}, q.size(0), k.size(0),
                                              /*dropout_p=*/0, options.causal, none, none, scale_of(options));
  }
  write(dq, std::get<0>(gradients));
  write(dk, std::get<1>(gradients));
  write(dv, std::get<2>(gradients));
}

}  // namespace megatron::kernels::cuda
