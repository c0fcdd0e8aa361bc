#pragma once
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstddef>
#include <cstdint>

#include "megatron/kernels/activation.h"

// Kernels over rows and runs stored as T: float, c10::BFloat16 or c10::Half. They compute in float32 and round what
// they store to nearest. One call is one piece of work for one thread. Each table holds the kernels of the instruction
// set in use.
namespace megatron::kernels::cpu {

/// Dropout of one row: `words` null: none. Element i is dropped where words[i] < threshold.
struct RowDropout {
  const std::uint32_t* words;
  std::uint32_t threshold;
  float keep_scale;
};
struct RowStatistics {
  float mean, rstd;
};

template <class T>
struct RowKernels {
  /// x = residual + dropout(x + bias); bias may be null.
  void (*bias_dropout_add)(T* x, const T* bias, const T* residual, std::size_t count, const RowDropout& dropout);
  /// y = x * mask.
  void (*dropout)(const T* x, T* y, std::size_t count, const RowDropout& dropout);
  /// y = (x - mean) * rstd * weight + bias.
  RowStatistics (*layer_norm)(const T* x, const T* weight, const T* bias, T* y, std::size_t count, float eps);
  /// dx (plus residual_gradient unless null), and adds the row to grad_weight and grad_bias.
  void (*layer_norm_backward)(const T* dy, const T* x, RowStatistics statistics, const T* weight,
                              const T* residual_gradient, T* dx, float* grad_weight, float* grad_bias,
                              std::size_t count);
  /// y = x * rstd * weight; returns rstd.
  float (*rms_norm)(const T* x, const T* weight, T* y, std::size_t count, float eps);
  void (*rms_norm_backward)(const T* dy, const T* x, float rstd, const T* weight, const T* residual_gradient, T* dx,
                            float* grad_weight, std::size_t count);
  /// to += from.
  void (*add)(float* to, const T* from, std::size_t count);
  /// add() for rows side by side.
  void (*add_rows)(float* to, const T* from, std::size_t rows, std::size_t count);
  /// to = the sum of weights[r] * rows[r].
  void (*weighted_sum)(const T* const* rows, const float* weights, std::size_t num_rows, T* to, std::size_t count);
};
template <class T>
RowKernels<T> row_kernels();

template <class T>
struct ActivationKernels {
  // `form`: that which the kernels were asked for; gated units read its clamp and offset, others ignore it.
  /// x += bias (null: none, and x is only read), y = f(x).
  void (*forward)(T* x, const T* bias, T* y, std::size_t count, const Activation& form);
  /// dy *= f'(u).
  void (*backward)(T* dy, const T* u, std::size_t count);
  /// One row of `count` gates and `count` values: x += bias as above, y = f(gate) * value.
  void (*gated_forward)(T* x, const T* bias, T* y, std::size_t count, const Activation& form);
  void (*gated_backward)(const T* dy, const T* u, T* du, std::size_t count, const Activation& form);
  /// du = weight * dy * f'(u), y = weight * f(u); returns the sum of dy * f(u).
  float (*weighted_backward)(const T* dy, const T* u, float weight, T* du, T* y, std::size_t count,
                             const Activation& form);
  /// As weighted_backward(), of one row of `count` gates and `count` values.
  float (*gated_weighted_backward)(const T* dy, const T* u, float weight, T* du, T* y, std::size_t count,
                                   const Activation& form);
};
template <class T>
ActivationKernels<T> activation_kernels(Activation form);

struct SoftmaxRow {
  float max;
  double sum_exp, sum;
};
template <class T>
struct SoftmaxKernels {
  /// Over one row of logits; sums in float64 over blocks.
  SoftmaxRow (*pieces)(const T* logits, std::size_t count);
  /// logits = (exp(logits - logsumexp) - smooth) * scale.
  void (*gradient)(T* logits, std::size_t count, float logsumexp, float scale, float smooth);
};
template <class T>
SoftmaxKernels<T> softmax_kernels();

}  // namespace megatron::kernels::cpu
