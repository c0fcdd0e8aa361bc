#pragma once
#include <ATen/core/Tensor.h>

namespace megatron::kernels::cpu {

/// Whether the vector kernels may run: AVX2 or better, and not forced to "reference". Process-wide.
bool enabled();

/// Whether they may run on `x`: contiguous float32 on the CPU.
inline bool fast(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous() && enabled();
}
inline bool fast_or_absent(const at::Tensor& x) { return !x.defined() || fast(x); }

template <class... Tensors>
bool all_fast(const Tensors&... x) {
  return (fast(x) && ...);
}

}  // namespace megatron::kernels::cpu
