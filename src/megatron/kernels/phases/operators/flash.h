#pragma once
#include "megatron/kernels/phases/flash/bias_gradient.h"
#include "megatron/kernels/phases/flash/forward.h"
#include "megatron/kernels/phases/flash/key_gradient.h"
#include "megatron/kernels/phases/flash/query_gradient.h"
#include "megatron/kernels/phases/operators/attention_arguments.h"

namespace megatron::kernels::phases {

/// Exact attention on tensor cores (flash/): 16 bits, heads of up to 256, with a bias of up to 128 and no cap.
template <class Driver>
struct FlashOperators {
  /// Whether these, or gradients of them, are what the kernels read and write: chunks of 16 bytes.
  static bool serves(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options) {
    constexpr std::int64_t kMost = 256, kMostBiased = 128, kLongest = std::int64_t{1} << 30;
    const auto alike = [&](const at::Tensor& x) {
      return x.dim() == 4 && x.scalar_type() == q.scalar_type() && x.device() == q.device() && in_chunks(x);
    };
    return (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf) && (q.dim() == 4 || q.dim() == 5) &&
           in_chunks(q) && alike(k) && alike(v) && q.size(-1) <= kMost &&
           (!options.bias.defined() ||
            (options.soft_cap == 0 && q.size(-1) <= kMostBiased && options.bias.device() == q.device())) &&
           options.scale >= 0 && q.size(0) < kLongest && k.size(0) < kLongest && options.ahead < kLongest;
  }

  static AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionOptions& options) {
    const std::int64_t heads = q.numel() / (q.size(0) * q.size(1) * q.size(-1));
    AttentionOutput result{at::empty({q.size(0), q.size(1), heads, q.size(-1)}, q.options()),
                           at::empty({q.size(1), heads, q.size(0)}, q.options().dtype(at::kFloat))};
    const Prepared prepared(q, k, v, result, options);
    launch(q, options.bias.defined(), [&](auto type, auto size, auto biased) {
      using Kernel = FlashForward<decltype(type), size(), biased()>;
      const FlashArgs& a = prepared.args;
      Driver::template launch<Kernel>(a, a.batch * a.heads() * Kernel::tiles(a));
    });
    if (options.sinks.defined()) add_sinks_(result, options.sinks);
    return result;
  }

  static void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                                 const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dbias) {
    const at::Tensor dout_read = readable(dout, q), out = readable(forward.out, q),
                     logsumexp = forward.logsumexp.to(at::kFloat).contiguous(), delta = at::empty_like(logsumexp);
    Prepared prepared(q, k, v, {out, logsumexp}, options);
    FlashArgs& a = prepared.args;
    a.delta = pointer<float>(delta);
    a.dout = heads_of(dout_read, a.ratio);
    a.dq = heads_of(dq, a.ratio);
    a.dk = heads_of(dk, 1);
    a.dv = heads_of(dv, 1);
    a.dbias = pointer<float>(dbias);
    at::Tensor partial;
    if (dbias.defined()) {
      partial = at::empty({FlashBiasGradient<Bf16, 64>::room(a)}, logsumexp.options());
      a.partial = pointer<float>(partial);
    }
    launch(q, options.bias.defined(), [&](auto type, auto size, auto biased) {
      using T = decltype(type);
      using Queries = FlashQueryGradient<T, size(), biased()>;
      using Keys = FlashKeyGradient<T, size(), biased()>;
      Driver::template launch<FlashDelta<T>>(a, FlashDelta<T>::blocks(a));
      Driver::template launch<Keys>(a, a.batch * a.groups * Keys::tiles(a));
      Driver::template launch<Queries>(a, a.batch * a.heads() * Queries::tiles(a));
      using Bias = FlashBiasGradient<T, size()>;
      if constexpr (decltype(biased)::value) {
        if (!dbias.defined()) return;
        Driver::template launch<Bias>(a, a.heads() * Bias::bands(a));
        Driver::template launch<FlashBiasSum>(a, blocks_for<FlashBiasSum>(FlashBiasSum::tasks(a)));
      }
    });
  }

 private:
  struct Prepared : PreparedAttention<FlashArgs, float> {
    Prepared(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOutput& forward,
             const AttentionOptions& options)
        : PreparedAttention(q, k, v, forward, options) {
      args.cap = static_cast<float>(options.soft_cap);
    }
  };

  /// Whether every row of x begins at a multiple of 16 bytes and is of chunks of as many.
  static bool in_chunks(const at::Tensor& x) {
    constexpr std::int64_t kElements = 8;
    if (x.numel() == 0 || x.stride(-1) != 1 || x.size(-1) % kElements != 0) return false;
    for (std::int64_t i = 0; i + 1 < x.dim(); ++i)
      if (x.size(i) > 1 && x.stride(i) % kElements != 0) return false;
    return reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % (2 * kElements) == 0;
  }
  /// x, or a copy of it as the kernels read it.
  static at::Tensor readable(const at::Tensor& x, const at::Tensor& q) {
    const bool as_it_is = x.scalar_type() == q.scalar_type() && (x.dim() == 4 || x.dim() == 5) && in_chunks(x);
    return as_it_is ? x : x.to(q.scalar_type()).clone(at::MemoryFormat::Contiguous);
  }

  template <class Launch>
  static void launch(const at::Tensor& q, bool biased, const Launch& launch) {
    using Small = std::integral_constant<int, 64>;
    using Large = std::integral_constant<int, 128>;
    using Wide = std::integral_constant<int, 256>;
    const auto of = [&](auto type, auto size) {
      if (biased)
        launch(type, size, std::true_type());
      else
        launch(type, size, std::false_type());
    };
    const auto of_type = [&](auto type) {
      if (q.size(-1) <= Small())
        of(type, Small());
      else if (q.size(-1) <= Large())
        of(type, Large());
      else
        launch(type, Wide(), std::false_type());
    };
    if (q.scalar_type() == at::kBFloat16)
      of_type(Bf16());
    else
      of_type(Fp16());
  }
};

}  // namespace megatron::kernels::phases
