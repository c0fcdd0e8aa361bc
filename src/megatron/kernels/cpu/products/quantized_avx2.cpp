#include "megatron/kernels/cpu/products/quantized_product.h"

#if defined(__x86_64__)
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <immintrin.h>

#include <bit>
#include <cstring>
#include <limits>

// Only on machines with AVX2, FMA and F16C, whatever the rest of the program is compiled for.
#define MEGATRON_AVX2 __attribute__((target("avx2,fma,f16c")))

namespace megatron::kernels::cpu {
namespace {

constexpr int kHalves = 2;            // of a panel, in two vectors
constexpr std::size_t kBytes32 = 32;  // of a vector

// ---- inputs

MEGATRON_AVX2 inline __m256 eight_of(const float* p) { return _mm256_loadu_ps(p); }
MEGATRON_AVX2 inline __m256 eight_of(const c10::BFloat16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
MEGATRON_AVX2 inline __m256 eight_of(const c10::Half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

/// Of eight numbers.
MEGATRON_AVX2 inline std::uint32_t largest_of(__m256i x) {
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xB1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
}
MEGATRON_AVX2 inline std::int32_t sum_of(__m256i x) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  return _mm_cvtsi128_si32(four);
}

template <class T>
MEGATRON_AVX2 void quantize_rows(const T* from, GgufType weights, const InputTile& to) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  const std::uint32_t infinite = std::bit_cast<std::uint32_t>(std::numeric_limits<float>::infinity());
  for (std::size_t row = 0; row < to.rows; ++row)
    for (std::size_t b = 0; b < to.blocks; ++b, from += kLevels) {
      const __m256 x[4] = {eight_of(from), eight_of(from + 8), eight_of(from + 16), eight_of(from + 24)};
      // Magnitudes of floats are in the order of their bits, and NaN is the largest.
      __m256i most = _mm256_and_si256(_mm256_castps_si256(x[0]), magnitude);
      for (int i = 1; i < 4; ++i) most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude));
      const std::uint32_t bits = largest_of(most);
      const bool finite = bits < infinite;
      const float largest = std::bit_cast<float>(bits);
      const bool holds = finite && largest >= kLeastInput;
      const __m256 inverse = _mm256_set1_ps(holds ? 127 / largest : 0);
      __m256i levels[4];
      for (int i = 0; i < 4; ++i)
        levels[i] = holds ? _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse)) : _mm256_setzero_si256();
      const std::int32_t sum =
          sum_of(_mm256_add_epi32(_mm256_add_epi32(levels[0], levels[1]), _mm256_add_epi32(levels[2], levels[3])));
      // Packing takes the two halves of its operands in turns: groups of four come out as 0 2 4 6 1 3 5 7.
      const __m256i packed =
          _mm256_packs_epi16(_mm256_packs_epi32(levels[0], levels[1]), _mm256_packs_epi32(levels[2], levels[3]));
      const __m256i ordered = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
      const std::size_t at = b * to.rows + row;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.levels + at * kLevels), ordered);
      const float scale = !finite ? std::numeric_limits<float>::quiet_NaN() : holds ? largest / 127 : 0;
      to.scales[at] = scale;
      to.corrections[at] = correction_of(weights, scale, sum);
    }
}

// ---- products

MEGATRON_AVX2 inline __m256i four_signed(const std::int8_t* p) {
  std::int32_t levels;
  std::memcpy(&levels, p, sizeof levels);
  return _mm256_set1_epi32(levels);
}
MEGATRON_AVX2 inline __m256i bytes_at(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
MEGATRON_AVX2 inline __m256 eight_halves(const std::uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

/// Levels of a block, 8 rows of the panel, times those of one row of inputs. vpmaddubsw, unsigned times signed, adds
/// two products in 16 bits: of 8-bit levels they fit as |x| times w with the sign of x, at most 2 * 127 * 127, and of
/// 4-bit levels so do all eight of a block, 16 * 15 * 127.
template <GgufType kType>
MEGATRON_AVX2 inline __m256i block_dots(const std::uint8_t* levels, const std::int8_t* in, std::uint32_t correction) {
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (!is_4_bit(kType)) {
    __m256i dots = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (std::size_t v = 0; v < 8; ++v) {
      const __m256i w = _mm256_xor_si256(bytes_at(levels + v * 64), _mm256_set1_epi8(static_cast<char>(0x80)));
      const __m256i x = four_signed(in + v * 4);
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w, x));
      dots = _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, ones));
    }
    return dots;
  } else {
    const __m256i low_bits = _mm256_set1_epi8(15);
    __m256i pairs = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (std::size_t v = 0; v < 4; ++v) {
      const __m256i both = bytes_at(levels + v * 64);
      const __m256i lower = _mm256_and_si256(both, low_bits);
      const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_bits);
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(lower, four_signed(in + v * 4)));
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(upper, four_signed(in + 16 + v * 4)));
    }
    const __m256i dots = _mm256_madd_epi16(pairs, ones);
    if constexpr (kType == GgufType::Q4_1) return dots;
    return _mm256_add_epi32(dots, _mm256_set1_epi32(static_cast<std::int32_t>(correction)));
  }
}

template <GgufType kType>
MEGATRON_AVX2 void panel_by_halves(const InputTile& x, const QuantizedPanels& w, std::size_t columns,
                                   const MutableMatrix& c) {
  for (std::size_t row = 0; row < x.rows; ++row) {
    const std::uint8_t* levels = w.levels;
    const std::uint16_t* scales = w.scales;
    __m256 sums[kHalves] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (std::size_t b = 0; b < x.blocks; ++b, levels += w.level_bytes(), scales += w.scale_count()) {
      const std::size_t at = b * x.rows + row;
      const __m256 in_scale = _mm256_set1_ps(x.scales[at]);
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        const __m256i dots = block_dots<kType>(levels + h * kBytes32, x.levels + at * kLevels, x.corrections[at]);
        const __m256 both = _mm256_mul_ps(eight_halves(scales + h * 8), in_scale);
        sums[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), both, sums[h]);
        if constexpr (kType == GgufType::Q4_1)
          sums[h] = _mm256_fmadd_ps(eight_halves(scales + kPanelRows + h * 8),
                                    _mm256_set1_ps(std::bit_cast<float>(x.corrections[at])), sums[h]);
      }
    }
    alignas(32) float wide[kPanelRows];
    _mm256_store_ps(wide, sums[0]);
    _mm256_store_ps(wide + 8, sums[1]);
    write_sums(wide, kPanelRows, 1, columns, c.at(row, 0), false);
  }
}

}  // namespace

void quantize_inputs_avx2(const void* from, ElementType type, GgufType weights, const InputTile& to) {
  switch (type) {
    case ElementType::Float32:
      return quantize_rows(static_cast<const float*>(from), weights, to);
    case ElementType::BFloat16:
      return quantize_rows(static_cast<const c10::BFloat16*>(from), weights, to);
    case ElementType::Float16:
      return quantize_rows(static_cast<const c10::Half*>(from), weights, to);
  }
}

void panel_product_avx2(const InputTile& x, const QuantizedPanels& w, std::size_t columns, const MutableMatrix& c) {
  switch (w.type) {
    case GgufType::Q4_0:
      return panel_by_halves<GgufType::Q4_0>(x, w, columns, c);
    case GgufType::Q4_1:
      return panel_by_halves<GgufType::Q4_1>(x, w, columns, c);
    default:
      return panel_by_halves<GgufType::Q8_0>(x, w, columns, c);
  }
}

}  // namespace megatron::kernels::cpu

#else

namespace megatron::kernels::cpu {

// Never chosen.
void quantize_inputs_avx2(const void*, ElementType, GgufType, const InputTile&) {}
void panel_product_avx2(const InputTile&, const QuantizedPanels&, std::size_t, const MutableMatrix&) {}

}  // namespace megatron::kernels::cpu

#endif
