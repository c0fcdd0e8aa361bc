#pragma once
#include <ATen/core/Tensor.h>

#include "megatron/kernels/activation.h"

// What is between the products of experts (matmul.h: Groups), each in one pass over memory. n rows, T tokens, k experts
// of each, f features.
namespace megatron::kernels {

struct WeightedGradient {
  at::Tensor du;       ///< as u
  at::Tensor y;        ///< [n, f] weight * f(u)
  at::Tensor weights;  ///< [n] of the weights' type; undefined where there are none
};
/// The way back through w * f(u), of rows that count `weights` [n] (float32, of float64 float64; undefined: 1 each):
/// from dy [n, f] and u [n, f], gated [n, 2 f] (activation.h), the gradients of u and of the weights, and y again.
WeightedGradient weighted_activation_backward(const at::Tensor& dy, const at::Tensor& u, const at::Tensor& weights,
                                              Activation form, bool gated);

/// [T, c] of rows [n, c]: for each token the sum of its rows `index` [T, k] int64, each times `weights` [T, k]
/// (float32, of float64 float64; undefined: 1), in float32 rounded once. Where the index is below 0 there is no row.
at::Tensor combined_rows(const at::Tensor& rows, const at::Tensor& index, const at::Tensor& weights);

}  // namespace megatron::kernels
