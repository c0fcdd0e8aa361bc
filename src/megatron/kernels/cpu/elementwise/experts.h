#pragma once
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstddef>

#include "megatron/kernels/activation.h"

namespace megatron::kernels::cpu {

/// Kernels over single rows, as those of elementwise.h.
template <class T>
struct ExpertKernels {
  /// du = weight * dy * f'(u), y = weight * f(u); returns the sum of dy * f(u).
  float (*weighted_backward)(const T* dy, const T* u, float weight, T* du, T* y, std::size_t count);
  /// The same of a row of `count` gates and `count` values.
  float (*gated_weighted_backward)(const T* dy, const T* u, float weight, T* du, T* y, std::size_t count);
  /// to = the sum of weights[r] * rows[r].
  void (*weighted_sum)(const T* const* rows, const float* weights, std::size_t num_rows, T* to, std::size_t count);
};
/// Those of the instruction set in use.
template <class T>
ExpertKernels<T> expert_kernels(Activation form);

}  // namespace megatron::kernels::cpu
