#pragma once
#include "megatron/kernels/attention.h"

// Attention on a GPU: the library's kernels where they serve (attention_choice.h), else our own.
namespace megatron::kernels::cuda {

AttentionOutput attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options);
void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOutput& forward, const AttentionOptions& options, const at::Tensor& dq,
                        const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dbias);

}  // namespace megatron::kernels::cuda
