#include "megatron/kernels/attention.h"

#include <c10/core/GradMode.h>

#include "megatron/kernels/reference.h"

namespace megatron::kernels {

AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options) {
  const c10::NoGradGuard no_grad;
  return reference::attention(q, k, v, options);
}

void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                        const at::Tensor& dk, const at::Tensor& dv) {
  const c10::NoGradGuard no_grad;
  reference::attention_backward(dout, q, k, v, forward, options, dq, dk, dv);
}

}  // namespace megatron::kernels
