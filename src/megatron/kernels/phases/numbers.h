#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

// What the bodies of kernels are written in: the same bits from nvcc and g++. No header of torch or CUDA.
#if defined(__CUDACC__)
#define MEGATRON_BOTH __host__ __device__ __forceinline__
/// Before a loop over what a thread holds: a register is not chosen by a number that is known when the kernel runs.
#define MEGATRON_UNROLL _Pragma("unroll")
#define MEGATRON_PRAGMA(words) _Pragma(#words)
#define MEGATRON_UNROLL_BY(count) MEGATRON_PRAGMA(unroll count)
#else
#define MEGATRON_BOTH inline
#define MEGATRON_UNROLL
#define MEGATRON_UNROLL_BY(count)
#endif

namespace megatron::kernels::phases {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

template <class T>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<double> {
  using type = double;
};
/// What a kernel computes in: double for double, else float.
template <class T>
using Compute = typename ComputeType<T>::type;

MEGATRON_BOTH double widen(double x) { return x; }
MEGATRON_BOTH float widen(float x) { return x; }
MEGATRON_BOTH float widen(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
MEGATRON_BOTH float widen(Fp16 x) {
#if defined(__CUDA_ARCH__)
  float wide = 0;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16, rest = x.bits & 0x7FFFu;
  std::uint32_t bits = 0;
  if (rest >= 0x7C00u) {  // infinity, NaN
    bits = 0x7F800000u | (rest & 0x3FFu) << 13;
  } else if (rest >= 0x0400u) {
    bits = (rest << 13) + (112u << 23);
  } else {  // by a product of normal numbers: denormal ones may be read as zero
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(rest) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | bits);
#endif
}

/// x rounded to nearest, ties to even. A NaN is one, of whatever bits.
template <class T>
MEGATRON_BOTH T narrow(Compute<T> x) {
  return x;
}
template <>
MEGATRON_BOTH Bf16 narrow<Bf16>(float x) {
#if defined(__CUDA_ARCH__)
  Bf16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(x));
  return rounded;
#else
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {0x7FC0};
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)};
#endif
}
template <>
MEGATRON_BOTH Fp16 narrow<Fp16>(float x) {
#if defined(__CUDA_ARCH__)
  Fp16 rounded_half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded_half.bits) : "f"(x));
  return rounded_half;
#else
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
  std::uint32_t rounded = 0;
  if (size > 0x7F800000u) {
    rounded = 0x7E00u;
  } else if (size >= 0x477FF000u) {  // 65520 and more
    rounded = 0x7C00u;
  } else if (size < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, rounded where it meets 2^23
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) * 0x1p24f + 0x1p23f) - 0x4B000000u;
  } else {
    rounded = (size + 0xFFFu + (size >> 13 & 1u) - (112u << 23)) >> 13;
  }
  return {static_cast<std::uint16_t>(sign | rounded)};
#endif
}

// What results that are stored in 16 bits need no better than a GPU's unit for them gives, in one instruction and not
// in twenty: relative errors of 2^-21. T: what is stored.
template <class T>
MEGATRON_BOTH Compute<T> quick_exp(Compute<T> x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) return __expf(x);
#endif
  return std::exp(x);
}
template <class T>
MEGATRON_BOTH Compute<T> quick_inverse(Compute<T> x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) {
    float inverse = 0;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
  }
#endif
  return Compute<T>(1) / x;
}

/// An array whose type is known when a kernel runs: what is read or written seldom, or comes in many combinations.
enum class DType : std::uint8_t { F32, F64, Bf16, Fp16 };
struct In {
  const void* data = nullptr;  ///< null: absent
  DType type = DType::F32;
};
struct Out {
  void* data = nullptr;
  DType type = DType::F32;
};

template <class C>
MEGATRON_BOTH C read(const In& in, std::int64_t i) {
  switch (in.type) {
    case DType::F64:
      return static_cast<C>(static_cast<const double*>(in.data)[i]);
    case DType::Bf16:
      return static_cast<C>(widen(static_cast<const Bf16*>(in.data)[i]));
    case DType::Fp16:
      return static_cast<C>(widen(static_cast<const Fp16*>(in.data)[i]));
    case DType::F32:
      break;
  }
  return static_cast<C>(static_cast<const float*>(in.data)[i]);
}
template <class C>
MEGATRON_BOTH C read(const Out& in, std::int64_t i) {
  return read<C>(In{in.data, in.type}, i);
}
template <class C>
MEGATRON_BOTH void write(const Out& out, std::int64_t i, C x) {
  switch (out.type) {
    case DType::F64:
      static_cast<double*>(out.data)[i] = static_cast<double>(x);
      return;
    case DType::Bf16:
      static_cast<Bf16*>(out.data)[i] = narrow<Bf16>(static_cast<float>(x));
      return;
    case DType::Fp16:
      static_cast<Fp16*>(out.data)[i] = narrow<Fp16>(static_cast<float>(x));
      return;
    case DType::F32:
      static_cast<float*>(out.data)[i] = static_cast<float>(x);
      return;
  }
}

}  // namespace megatron::kernels::phases
