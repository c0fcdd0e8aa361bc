#include "megatron/kernels/cpu/products/quantized_product.h"

#if defined(__x86_64__)
#include <array>
#include <cstring>
#include <utility>

#include "megatron/kernels/cpu/products/quantized_lanes.h"

namespace megatron::kernels::cpu {
namespace {

constexpr std::size_t kVectorBytes = 64;
/// How far ahead memory is asked for weights, which are read from front to back.
constexpr std::size_t kAhead = 4096;

MEGATRON_VNNI inline __m512i four_levels(const std::int8_t* p) {
  std::int32_t levels;
  std::memcpy(&levels, p, sizeof levels);
  return _mm512_set1_epi32(levels);
}

template <GgufType kType, int kRows>
MEGATRON_VNNI void panel_of_rows(const InputTile& x, const QuantizedPanels& w, __mmask16 lanes,
                                 const MutableMatrix& c) {
  constexpr std::size_t kBytes = level_bytes(kType), kScales = scale_count(kType);
  const std::uint8_t* levels = w.levels;
  const std::uint16_t* scales = w.scales;
  const std::int8_t* in = x.levels;
  const float* in_scales = x.scales;
  const std::uint32_t* corrections = x.corrections;
  __m512 sums[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sums[r] = _mm512_setzero_ps();
  for (std::size_t b = 0; b < x.blocks; ++b) {
    __m512i dots[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      dots[r] = kType == GgufType::Q4_1 ? _mm512_setzero_si512()
                                        : _mm512_set1_epi32(static_cast<std::int32_t>(corrections[r]));
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kBytes / kVectorBytes; ++v) {
      const __m512i bytes = _mm512_loadu_si512(levels + v * kVectorBytes);
      if constexpr (kRows == 1) __builtin_prefetch(levels + v * kVectorBytes + kAhead, 0, 2);
      if constexpr (!is_4_bit(kType)) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) dots[r] = _mm512_dpbusd_epi32(dots[r], bytes, four_levels(in + r * 32 + v * 4));
      } else {
        const __m512i lower = _mm512_and_si512(bytes, _mm512_set1_epi8(15));
        const __m512i upper = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          dots[r] = _mm512_dpbusd_epi32(dots[r], lower, four_levels(in + r * 32 + v * 4));
          dots[r] = _mm512_dpbusd_epi32(dots[r], upper, four_levels(in + r * 32 + 16 + v * 4));
        }
      }
    }
    const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(in_scales[r]));
      sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), both, sums[r]);
    }
    if constexpr (kType == GgufType::Q4_1) {
      const __m512 least = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + kPanelRows)));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512i correction = _mm512_set1_epi32(static_cast<std::int32_t>(corrections[r]));
        sums[r] = _mm512_fmadd_ps(least, _mm512_castsi512_ps(correction), sums[r]);
      }
    }
    levels += kBytes;
    scales += kScales;
    in += kRows * kLevels;
    in_scales += kRows;
    corrections += kRows;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) put_lanes(sums[r], c, static_cast<std::size_t>(r), lanes);
}

template <GgufType kType>
void panel_of_type(const InputTile& x, const QuantizedPanels& w, __mmask16 lanes, const MutableMatrix& c) {
  constexpr auto kByRows = []<int... kRows>(std::integer_sequence<int, kRows...>) {
    return std::array{&panel_of_rows<kType, kRows + 1>...};
  }
  (std::make_integer_sequence<int, static_cast<int>(kTileRows)>());
  return kByRows[x.rows - 1](x, w, lanes, c);
}

}  // namespace

void panel_product_vnni(const InputTile& x, const QuantizedPanels& w, std::size_t columns, const MutableMatrix& c) {
  const auto lanes = static_cast<__mmask16>((1u << columns) - 1);
  switch (w.type) {
    case GgufType::Q4_0:
      return panel_of_type<GgufType::Q4_0>(x, w, lanes, c);
    case GgufType::Q4_1:
      return panel_of_type<GgufType::Q4_1>(x, w, lanes, c);
    default:
      return panel_of_type<GgufType::Q8_0>(x, w, lanes, c);
  }
}

}  // namespace megatron::kernels::cpu

#else

namespace megatron::kernels::cpu {

// Never chosen.
void panel_product_vnni(const InputTile&, const QuantizedPanels&, std::size_t, const MutableMatrix&) {}

}  // namespace megatron::kernels::cpu

#endif
