#pragma once
#include <compare>
#include <cstdint>

// Which products with GELU behind them, or before them on the way back, cuBLASLt computes in one kernel.
namespace megatron::kernels::cuda {

/// What such a product asks for, as far as it decides who computes it.
struct EpilogueCall {
  int capability = 0;             ///< of the GPU, major
  bool sixteen_bits = false;      ///< all of one type, bf16 or fp16
  bool tanh_gelu = false;         ///< not gated: the one form that cuBLASLt has
  bool aligned = false;           ///< contiguous, from multiples of 16 bytes on
  std::int64_t rows = 0;          ///< of x or dz
  std::int64_t f = 0, other = 0;  ///< features of u, and of x or dz
};

/// Whether a weight's gradient [f, other] in float32 is computed with its bias's (decision 162).
constexpr bool gradients_computed(const EpilogueCall& call) {
  constexpr std::int64_t kElements = 8;  // of 16 bytes; and what the leading dimension of u must divide by
  return call.capability >= 8 && call.sixteen_bits && call.aligned && call.rows > 0 && call.f > 0 && call.other > 0 &&
         call.f % kElements == 0 && call.other % kElements == 0;
}
/// Gradients of biases are none of it: cuBLASLt would round them to 16 bits, they are float32 sums (DGELU, not
/// DGELU_BGRAD).
constexpr bool epilogue_computes(const EpilogueCall& call) { return gradients_computed(call) && call.tanh_gelu; }

/// What a pointer is a multiple of, as far as kernels may ask for it.
inline std::int64_t alignment_of(const void* p) {
  constexpr std::uintptr_t kMost = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(p) | kMost;
  return static_cast<std::int64_t>(address & (~address + 1));
}

/// Products of one shape have one algorithm, which is asked for once.
struct EpilogueShape {
  int device = 0;
  bool backward = false, bfloat16 = false, bias = false, gradients = false;
  std::int64_t rows = 0, f = 0, other = 0;
  std::int64_t alignment = 16;  ///< of u and of the bias, which algorithms may demand more of than of matrices
  auto operator<=>(const EpilogueShape&) const = default;
};

}  // namespace megatron::kernels::cuda
