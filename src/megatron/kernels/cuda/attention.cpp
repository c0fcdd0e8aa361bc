#include "megatron/kernels/cuda/attention.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

#include "megatron/kernels/cuda/attention_choice.h"
#include "megatron/kernels/cuda/launch.h"
#include "megatron/kernels/phases/operators/attention.h"

namespace megatron::kernels::cuda {
namespace {

using Own = phases::AttentionOperators<DeviceDriver>;

bool takes_flash(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& options) {
  const AttentionCall call{.capability = at::cuda::getCurrentDeviceProperties()->major,
                           .sixteen_bits = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf,
                           .dropout = options.dropout.p > 0,
                           .first_key = options.first_key.defined() || options.ahead > 0,
                           .key_lengths = options.key_lengths.defined(),
                           .bias = options.bias.defined(),
                           .soft_cap = options.soft_cap > 0,
                           .head_size = q.size(-1),
                           .queries = q.size(0),
                           .keys = k.size(0)};
  return q.numel() > 0 && attention_kernel(call) == AttentionKernel::Flash;
}

std::optional<double> scale_of(const AttentionOptions& options) {
  return options.scale != 0 ? std::optional(options.scale) : std::nullopt;
}

/// [s, b, n, d] or [s, b, g, n/g, d] -> [b, s, n, d].
at::Tensor batch_first(const at::Tensor& x) { return (x.dim() == 5 ? x.flatten(2, 3) : x).transpose(0, 1); }

/// While it lives attention's gradient is summed in one order. Where deterministic algorithms are only asked for, as
/// everywhere else (parallel/cuda.h), libtorch adds it up by atomics.
class OneOrder {
 public:
  OneOrder() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false); }
  OneOrder(const OneOrder&) = delete;
  OneOrder& operator=(const OneOrder&) = delete;
  ~OneOrder() { at::globalContext().setDeterministicAlgorithms(asked_, warns_); }

 private:
  bool asked_ = at::globalContext().deterministicAlgorithms();
  bool warns_ = at::globalContext().deterministicAlgorithmsWarnOnly();
};

void write(const at::Tensor& to, const at::Tensor& x_bsnd) { to.copy_(x_bsnd.transpose(0, 1).reshape(to.sizes())); }

}  // namespace

AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options) {
  if (!takes_flash(q, k, options)) return Own::attention(q, k, v, options);
  const auto result =
      at::_flash_attention_forward(batch_first(q), batch_first(k), batch_first(v), {}, {}, q.size(0), k.size(0),
                                   /*dropout_p=*/0, options.causal, /*return_debug_mask=*/false, scale_of(options));
  const AttentionOutput made{std::get<0>(result).transpose(0, 1).contiguous(), std::get<1>(result)};
  if (options.sinks.defined()) add_sinks_(made, options.sinks);
  return made;
}

void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                        const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dbias) {
  if (!takes_flash(q, k, options)) return Own::attention_backward(dout, q, k, v, forward, options, dq, dk, dv, dbias);
  const at::Tensor none = at::empty({0}, q.options().dtype(at::kLong));  // of dropout, which there is none of
  const OneOrder one_order;
  const auto gradients = at::_flash_attention_backward(
      batch_first(dout), batch_first(q), batch_first(k), batch_first(v), batch_first(forward.out), forward.logsumexp,
      {}, {}, q.size(0), k.size(0), /*dropout_p=*/0, options.causal, none, none, scale_of(options));
  write(dq, std::get<0>(gradients));
  write(dk, std::get<1>(gradients));
  write(dv, std::get<2>(gradients));
}

}  // namespace megatron::kernels::cuda
