#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "megatron/kernels/phases/numbers.h"

namespace megatron::kernels::phases {

/// What a thread reads and writes at once: 16 bytes. Words, as a compiler takes an array of 16-bit numbers apart and
/// then stores one after the other.
template <class T>
inline constexpr int kChunk = 16 / static_cast<int>(sizeof(T));
template <class T>
struct alignas(16) Chunk {
  std::uint32_t words[4];
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

/// Element `e`, which a loop that is unrolled knows when it is compiled.
template <class T>
MEGATRON_BOTH Compute<T> number_of(const Chunk<T>& chunk, int e) {
  if constexpr (std::is_same_v<T, Bf16>)  // the higher one lies where a float has it
    return std::bit_cast<float>(e % 2 == 0 ? chunk.words[e / 2] << 16 : chunk.words[e / 2] & 0xFFFF0000u);
  else if constexpr (std::is_same_v<T, Fp16>)
    return widen(Fp16{static_cast<std::uint16_t>(chunk.words[e / 2] >> (e % 2 * 16))});
  else if constexpr (sizeof(T) == 4)
    return std::bit_cast<float>(chunk.words[e]);
  else
    return std::bit_cast<double>(static_cast<std::uint64_t>(chunk.words[2 * e + 1]) << 32 | chunk.words[2 * e]);
}
template <class T>
MEGATRON_BOTH void unpack(const Chunk<T>& chunk, Compute<T> (&to)[kChunk<T>]) {
  MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) to[i] = number_of(chunk, i);
}

/// Two numbers in 16 bits each, the first in the lower half.
template <class T>
MEGATRON_BOTH std::uint32_t narrow_two(float first, float second) {
#if defined(__CUDA_ARCH__)
  std::uint32_t both = 0;
  if constexpr (std::is_same_v<T, Bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
#else
  return static_cast<std::uint32_t>(narrow<T>(first).bits) | static_cast<std::uint32_t>(narrow<T>(second).bits) << 16;
#endif
}
template <class T>
MEGATRON_BOTH Chunk<T> packed(const Compute<T> (&from)[kChunk<T>]) {
  Chunk<T> chunk;
  MEGATRON_UNROLL for (int w = 0; w < 4; ++w) {
    if constexpr (sizeof(T) == 2)
      chunk.words[w] = narrow_two<T>(from[2 * w], from[2 * w + 1]);
    else if constexpr (sizeof(T) == 4)
      chunk.words[w] = std::bit_cast<std::uint32_t>(from[w]);
    else
      chunk.words[w] = static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(from[w / 2]) >> (w % 2 * 32));
  }
  return chunk;
}

/// The first `count` elements from `from` on, zeros behind them. The values do not depend on the alignment.
template <class T>
MEGATRON_BOTH Chunk<T> load_chunk(const T* from, int count) {
  Chunk<T> chunk = {};
#if defined(__CUDA_ARCH__)
  if (count == kChunk<T> && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    return {{words.x, words.y, words.z, words.w}};
  }
  Compute<T> x[kChunk<T>];  // the bits come back from a wider type
  MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) x[i] = i < count ? widen(from[i]) : Compute<T>(0);
  chunk = packed<T>(x);
#else
  std::memcpy(chunk.words, from, static_cast<std::size_t>(count) * sizeof(T));
#endif
  return chunk;
}
template <class T>
MEGATRON_BOTH void load(const T* from, int count, Compute<T> (&to)[kChunk<T>]) {
  unpack(load_chunk(from, count), to);
}
template <class T>
MEGATRON_BOTH void store_chunk(T* to, int count, const Chunk<T>& chunk) {
#if defined(__CUDA_ARCH__)
  if (count == kChunk<T> && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    // By its name: the compiler joins it with the stores below, one word at a time.
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(chunk.words[0]),
                 "r"(chunk.words[1]), "r"(chunk.words[2]), "r"(chunk.words[3])
                 : "memory");
    return;
  }
  Compute<T> x[kChunk<T>];
  unpack(chunk, x);
  MEGATRON_UNROLL for (int i = 0; i < kChunk<T>; ++i) {
    if (i < count) to[i] = narrow<T>(x[i]);
  }
#else
  std::memcpy(to, chunk.words, static_cast<std::size_t>(count) * sizeof(T));
#endif
}
template <class T>
MEGATRON_BOTH void store(T* to, int count, const Compute<T> (&from)[kChunk<T>]) {
  store_chunk(to, count, packed<T>(from));
}

/// Divides by a number that is known when a kernel is launched: by a product, where n < 2^31 (Granlund and Montgomery
/// 1994); a division takes as long as some elements.
struct Divisor {
  std::int64_t by = 1;
  std::uint32_t factor = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(std::int64_t d) : by(d) {
    if (d < 1 || d >> 31 != 0) return;
    while ((std::int64_t{1} << shift) < d) ++shift;
    const std::uint64_t rest = (std::uint64_t{1} << shift) - static_cast<std::uint64_t>(d);
    factor = static_cast<std::uint32_t>((rest << 32) / static_cast<std::uint64_t>(d) + 1);
  }
  MEGATRON_BOTH std::int64_t of(std::int64_t n) const {
    if ((n | by) >> 31 != 0) return n / by;
    const auto small = static_cast<std::uint32_t>(n);
    const auto high = static_cast<std::uint32_t>(static_cast<std::uint64_t>(small) * factor >> 32);
    return (high + small) >> shift;
  }
};

}  // namespace megatron::kernels::phases
