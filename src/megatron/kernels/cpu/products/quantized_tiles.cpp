#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "megatron/kernels/cpu/products/quantized_product.h"

#if defined(__x86_64__)
#include "megatron/kernels/cpu/products/quantized_lanes.h"
#endif

// A block of a panel is a tile of 8 rows of 64 bytes, four numbers of each of its 16 rows in each, and that of 16 rows
// of inputs one of 16 rows of 32 bytes. Their product is the block's 256 integers, which leave the tile to be scaled:
// the next block has other scales.
namespace megatron::kernels::cpu {
namespace {

constexpr std::size_t kDots = kWideRows * kPanelRows;  // of a block
static_assert(kWideRows == kTileRows16);

/// The same by plain C++, for tests on machines without such tiles.
struct EmulatedBlocks {
  static void sign(const std::uint8_t* block, GgufType type, std::int8_t* to) {
    for (std::size_t row = 0; row < kPanelRows; ++row)
      for (std::size_t i = 0; i < kLevels; ++i)
        to[byte_in_panel(row, i)] = static_cast<std::int8_t>(level_in(block, type, row, i) - bias_of(type));
  }
  static void product(const InputTile& x, const std::int8_t* levels, const QuantizedPanels& w, std::size_t columns,
                      const MutableMatrix& c) {
    const auto half = [](std::uint16_t bits) { return static_cast<float>(c10::Half(bits, c10::Half::from_bits())); };
    float sums[kDots] = {};
    for (std::size_t b = 0; b < x.blocks; ++b)
      for (std::size_t row = 0; row < kWideRows; ++row)
        for (std::size_t column = 0; column < kPanelRows; ++column) {
          const std::size_t at = b * kWideRows + row;
          std::int32_t dot = 0;
          for (std::size_t i = 0; i < kLevels; ++i)
            dot += levels[b * kSignedBytes + byte_in_panel(column, i)] * x.levels[at * kLevels + i];
          const std::uint16_t* const scales = w.scales + b * w.scale_count() + column;
          float& sum = sums[row * kPanelRows + column];
          sum = std::fma(static_cast<float>(dot), half(*scales) * x.scales[at], sum);
          if (w.type == GgufType::Q4_1)
            sum = std::fma(half(scales[kPanelRows]), std::bit_cast<float>(x.corrections[at]), sum);
        }
    write_sums(sums, kPanelRows, kWideRows, columns, c, false);
  }
};

#if defined(__x86_64__)

// GCC 12 takes what its intrinsics leave undefined on purpose for a mistake.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

/// How many blocks tiles are ahead of the vectors that scale what they gave.
constexpr std::size_t kTilesAhead = 2;

/// AMX's tiles of this thread, for as long as the object lives: sums in 0 and 1, inputs in 2 and 3, weights in 4 and 5.
class HardwareBlocks {
 public:
  HardwareBlocks() {
    struct alignas(64) Config {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, kLevels, kLevels, 64, 64};
      std::uint8_t rows[16] = {kWideRows, kWideRows, kWideRows, kWideRows, kLevels / 4, kLevels / 4};
    };
    const Config config;
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  ~HardwareBlocks() { asm volatile("tilerelease"); }
  HardwareBlocks(const HardwareBlocks&) = delete;
  HardwareBlocks& operator=(const HardwareBlocks&) = delete;

  MEGATRON_VNNI static void sign(const std::uint8_t* block, GgufType type, std::int8_t* to) {
    const __m512i low_bits = _mm512_set1_epi8(15), bias = _mm512_set1_epi8(static_cast<char>(bias_of(type)));
    constexpr std::size_t kVector = 64;
    const std::size_t vectors = cpu::level_bytes(type) / kVector;
    for (std::size_t v = 0; v < vectors; ++v) {
      const __m512i bytes = _mm512_loadu_si512(block + v * kVector);
      if (!is_4_bit(type)) {
        _mm512_storeu_si512(to + v * kVector, _mm512_sub_epi8(bytes, bias));
        continue;
      }
      const __m512i upper = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_bits);
      _mm512_storeu_si512(to + v * kVector, _mm512_sub_epi8(_mm512_and_si512(bytes, low_bits), bias));
      _mm512_storeu_si512(to + (vectors + v) * kVector, _mm512_sub_epi8(upper, bias));
    }
  }

  void product(const InputTile& x, const std::int8_t* levels, const QuantizedPanels& w, std::size_t columns,
               const MutableMatrix& c) const {
    const auto lanes = static_cast<__mmask16>((1u << columns) - 1);
    return w.type == GgufType::Q4_1 ? scaled<true>(x, levels, w, lanes, c) : scaled<false>(x, levels, w, lanes, c);
  }

 private:
  /// The integers of a block. Blocks take the registers of one of two `kTurn`s.
  template <int kTurn>
  static void multiply(const std::int8_t* inputs, const std::int8_t* weights, std::int32_t* to) {
    asm volatile(
        "tilezero %%tmm%c0\n\t"
        "tileloadd (%3,%4,1), %%tmm%c1\n\t"
        "tileloadd (%5,%6,1), %%tmm%c2\n\t"
        "tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0\n\t"
        "tilestored %%tmm%c0, (%7,%6,1)"
        :
        : "i"(kTurn), "i"(2 + kTurn), "i"(4 + kTurn), "r"(inputs), "r"(kLevels), "r"(weights), "r"(kTileBytes), "r"(to)
        : "memory");
  }

  template <bool kLeast>
  MEGATRON_VNNI static void scaled(const InputTile& x, const std::int8_t* levels, const QuantizedPanels& w,
                                   __mmask16 lanes, const MutableMatrix& c) {
    alignas(64) std::int32_t dots[2 * kTilesAhead][kDots];
    const auto multiply_block = [&](std::size_t b) {
      const std::int8_t *const in = x.levels + b * kWideRows * kLevels, *const from = levels + b * kSignedBytes;
      std::int32_t* const to = dots[b % (2 * kTilesAhead)];
      return b % 2 == 0 ? multiply<0>(in, from, to) : multiply<1>(in, from, to);
    };
    const std::uint16_t* scales = w.scales;
    const float* in_scales = x.scales;
    const std::uint32_t* corrections = x.corrections;
    __m512 sums[kWideRows];
#pragma GCC unroll 16
    for (std::size_t r = 0; r < kWideRows; ++r) sums[r] = _mm512_setzero_ps();
    for (std::size_t b = 0; b < std::min(kTilesAhead, x.blocks); ++b) multiply_block(b);
    for (std::size_t b = 0; b < x.blocks; ++b) {
      if (b + kTilesAhead < x.blocks) multiply_block(b + kTilesAhead);
      const std::int32_t* const of_block = dots[b % (2 * kTilesAhead)];
      const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
#pragma GCC unroll 16
      for (std::size_t r = 0; r < kWideRows; ++r) {
        const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(in_scales[r]));
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(of_block + r * kPanelRows));
        sums[r] = _mm512_fmadd_ps(dot, both, sums[r]);
      }
      if constexpr (kLeast) {
        const __m512 least = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + kPanelRows)));
#pragma GCC unroll 16
        for (std::size_t r = 0; r < kWideRows; ++r) {
          const __m512i correction = _mm512_set1_epi32(static_cast<std::int32_t>(corrections[r]));
          sums[r] = _mm512_fmadd_ps(least, _mm512_castsi512_ps(correction), sums[r]);
        }
      }
      scales += kPanelRows * (kLeast ? 2 : 1);
      in_scales += kWideRows;
      corrections += kWideRows;
    }
#pragma GCC unroll 16
    for (std::size_t r = 0; r < kWideRows; ++r) put_lanes(sums[r], c, r, lanes);
  }
};

#pragma GCC diagnostic pop

#else
using HardwareBlocks = EmulatedBlocks;  // never chosen
#endif

template <class Unit>
void sign_with(const QuantizedPanels& w, std::size_t panels, std::int8_t* to) {
  for (std::size_t i = 0; i < panels * w.blocks; ++i)
    Unit::sign(w.levels + i * w.level_bytes(), w.type, to + i * kSignedBytes);
}

template <class Unit>
void multiply_with(const InputTile& x, const std::int8_t* levels, const QuantizedPanels& w, std::size_t columns,
                   const MutableMatrix& c) {
  const Unit unit{};
  for (std::size_t panel = 0; panel * kPanelRows < columns; ++panel) {
    const std::size_t column = panel * kPanelRows;
    unit.product(x, levels + panel * w.blocks * kSignedBytes, w.at(panel), std::min(kPanelRows, columns - column),
                 c.at(0, column));
  }
}

}  // namespace

void sign_levels(const QuantizedPanels& w, std::size_t panels, std::int8_t* to) {
  const bool emulated = integer_tiles() == TileUnit::Emulated;
  return emulated ? sign_with<EmulatedBlocks>(w, panels, to) : sign_with<HardwareBlocks>(w, panels, to);
}

void wide_product(const InputTile& x, const std::int8_t* levels, const QuantizedPanels& w, std::size_t columns,
                  const MutableMatrix& c) {
  const bool emulated = integer_tiles() == TileUnit::Emulated;
  return emulated ? multiply_with<EmulatedBlocks>(x, levels, w, columns, c)
                  : multiply_with<HardwareBlocks>(x, levels, w, columns, c);
}

}  // namespace megatron::kernels::cpu
