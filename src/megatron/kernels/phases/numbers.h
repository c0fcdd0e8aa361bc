#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "megatron/base/philox.h"

// What the bodies of kernels are written in: the same bits from nvcc and g++. No header of torch or CUDA.
#if defined(__CUDACC__)
#define MEGATRON_BOTH __host__ __device__ __forceinline__
#else
#define MEGATRON_BOTH inline
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
}

/// x rounded to nearest, ties to even.
template <class T>
MEGATRON_BOTH T narrow(Compute<T> x) {
  return x;
}
template <>
MEGATRON_BOTH Bf16 narrow<Bf16>(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {0x7FC0};
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)};
}
template <>
MEGATRON_BOTH Fp16 narrow<Fp16>(float x) {
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

/// What a thread reads and writes at once: 16 bytes.
template <class T>
inline constexpr int kChunk = 16 / static_cast<int>(sizeof(T));
template <class T>
struct alignas(16) Chunk {
  T values[kChunk<T>];
};

template <class T>
MEGATRON_BOTH constexpr std::int64_t chunks_of(std::int64_t size) {
  return (size + kChunk<T> - 1) / kChunk<T>;
}

/// How many elements chunk `chunk` of a row of `size` has.
template <class T>
MEGATRON_BOTH int chunk_size(std::int64_t size, std::int64_t chunk) {
  const std::int64_t left = size - chunk * kChunk<T>;
  return left < kChunk<T> ? static_cast<int>(left) : kChunk<T>;
}

/// The first `count` elements from `from` on, zeros behind them. The values do not depend on the alignment.
template <class T>
MEGATRON_BOTH void load(const T* from, int count, Compute<T> (&to)[kChunk<T>]) {
  if (count == kChunk<T> && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    const Chunk<T> chunk = *reinterpret_cast<const Chunk<T>*>(from);
    for (int i = 0; i < kChunk<T>; ++i) to[i] = widen(chunk.values[i]);
  } else {
    for (int i = 0; i < kChunk<T>; ++i) to[i] = i < count ? widen(from[i]) : Compute<T>(0);
  }
}
template <class T>
MEGATRON_BOTH void store(T* to, int count, const Compute<T> (&from)[kChunk<T>]) {
  if (count == kChunk<T> && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    Chunk<T> chunk;
    for (int i = 0; i < kChunk<T>; ++i) chunk.values[i] = narrow<T>(from[i]);
    *reinterpret_cast<Chunk<T>*>(to) = chunk;
  } else {
    for (int i = 0; i < kChunk<T>; ++i)
      if (i < count) to[i] = narrow<T>(from[i]);
  }
}

/// Words of a stream in ascending order of their index: Philox gives four at a time.
struct Words {
  std::uint64_t key = 0, sample = 0, block = ~std::uint64_t{0};
  PhiloxWords four = {};

  MEGATRON_BOTH std::uint32_t at(std::uint64_t index) {
    if (index / 4 != block) {
      block = index / 4;
      four = philox(key, block, sample);
    }
    return four[index % 4];
  }
};

/// Dropout (dropout.h) as a kernel is handed it. The samples' ids are on the host: most launches carry them.
struct Mask {
  static constexpr int kCarried = 64;
  bool on = false;
  std::uint32_t threshold = 0;
  double factor = 1;
  std::uint64_t key = 0;
  std::int64_t position_offset = 0, features = 0, feature_offset = 0, jump_at = 0, jump = 0;
  const std::int64_t* many = nullptr;  ///< the ids where there are more than kCarried
  std::int64_t carried[kCarried] = {};

  MEGATRON_BOTH std::uint64_t sample(std::int64_t b) const {
    return static_cast<std::uint64_t>(many != nullptr ? many[b] : carried[b]);
  }
  MEGATRON_BOTH Words words(std::int64_t b) const { return {key, sample(b)}; }
  /// Number of feature `j` at `position` in the full activation.
  MEGATRON_BOTH std::uint64_t element(std::int64_t position, std::int64_t j) const {
    const std::int64_t place = position_offset + position + (position >= jump_at ? jump : 0);
    return static_cast<std::uint64_t>(place * features + feature_offset + j);
  }
  /// What the element is multiplied by.
  MEGATRON_BOTH double of(Words& words, std::uint64_t index) const { return words.at(index) >= threshold ? factor : 0; }
};

}  // namespace megatron::kernels::phases
