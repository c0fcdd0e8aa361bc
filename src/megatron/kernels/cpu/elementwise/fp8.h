#pragma once
#include <cstddef>
#include <cstdint>

// Numbers of 8 bits as those of T, float, c10::BFloat16 or c10::Half, over runs that one thread works on
// (kernels/fp8/fp8.h). Each table holds the kernels of the instruction set in use.
namespace megatron::kernels::cpu {

template <class T>
struct Fp8Kernels {
  /// The largest magnitude of x, as the bits of a float32; above those of infinity where x has a NaN.
  std::uint32_t (*largest)(const T* x, std::size_t count);
  /// Each of `magnitudes`, in such bits, becomes the larger of itself and that of its x.
  void (*enlarge)(std::uint32_t* magnitudes, const T* x, std::size_t count);
  /// to = inverse * the number of 8 bits nearest to scale * x. `fine`: E4M3, else E5M2.
  void (*round)(const T* x, T* to, std::size_t count, float scale, float inverse, bool fine);
  /// The same, each by its own scale.
  void (*round_each)(const T* x, T* to, std::size_t count, const float* scales, const float* inverses, bool fine);
};
template <class T>
Fp8Kernels<T> fp8_kernels();

}  // namespace megatron::kernels::cpu
