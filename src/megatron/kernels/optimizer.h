#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

// Flat one-dimensional contiguous tensors.
namespace megatron::kernels {

struct AdamW {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  ///< multiplies the gradient: clipping and the mean over tokens, in the same pass
  std::int64_t step = 1;  ///< counts from 1, for the bias corrections
};
/// Decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), in one pass: 28 bytes a float32 parameter.
void adamw_(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
            const AdamW& options);

/// Sum of squares, accumulated in float64 in blocks whose boundaries do not depend on the number of threads. NaN and
/// inf propagate.
double sum_of_squares(const at::Tensor& x);
/// Largest absolute value; NaN if any is NaN.
double max_abs(const at::Tensor& x);

}  // namespace megatron::kernels
