#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megatron::kernels {

/// Rows of weight [v, h] for tokens [s, b] int64; row 0 of `weight` is token `begin`; tokens of other ranks give zeros.
/// -> [s, b, h]
at::Tensor embedding(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t begin);

/// grad_weight [v, h] += dy [s, b, h] at the rows of tokens; deterministic order (by position, then batch). Sums are
/// float32 (float64 for float64), whatever is stored.
void embedding_backward(const at::Tensor& grad_weight, const at::Tensor& tokens, const at::Tensor& dy,
                        std::int64_t begin);

}  // namespace megatron::kernels
