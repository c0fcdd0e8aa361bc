#pragma once
#include <ATen/core/Tensor.h>

namespace megatron::kernels::cpu {

/// Whether the vector kernels may run: AVX2 or better, and not forced to "reference". Process-wide.
bool enabled();

/// Whether float32 matrix products are our own as well: with AVX512 on AMD's processors, where MKL, which computes
/// libtorch's, stays with AVX2 (decision 38).
bool own_float32_products();
/// What own_float32_products() says from now on, process-wide: Own wherever there are vector kernels, or Library, as on
/// the other processors. Tests run both on every machine.
enum class Float32Products { OfThisMachine, Own, Library };
void choose_float32_products(Float32Products products);

/// Whether `x` is contiguous `dtype` on the CPU.
inline bool plain(at::ScalarType dtype, const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == dtype && x.is_contiguous();
}

/// Whether they may run on `x`: contiguous float32 on the CPU.
inline bool fast(const at::Tensor& x) { return plain(at::kFloat, x) && enabled(); }
inline bool fast_or_absent(const at::Tensor& x) { return !x.defined() || fast(x); }

template <class... Tensors>
bool all_fast(const Tensors&... x) {
  return (fast(x) && ...);
}

/// The kernels that compute in float32 whatever is stored (with_storage): whether they may run on all of `x`, those
/// that are defined, stored as `dtype`.
template <class... Tensors>
bool fast_as(at::ScalarType dtype, const Tensors&... x) {
  const bool known = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  return known && enabled() && ((!x.defined() || plain(dtype, x)) && ...);
}

/// Calls fn with a value of the C++ type of `dtype`: float32, bf16 or fp16, as fast_as found.
template <class Fn>
auto with_storage(at::ScalarType dtype, const Fn& fn) {
  if (dtype == at::kBFloat16) return fn(c10::BFloat16());
  if (dtype == at::kHalf) return fn(c10::Half());
  return fn(float());
}

}  // namespace megatron::kernels::cpu
