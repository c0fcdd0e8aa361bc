#include <cstring>

#include "megatron/kernels/cpu/products/tile_multiply.h"

#if defined(__x86_64__)
#include <immintrin.h>

// Only where has_dots(): the functions are compiled for AVX512_BF16 whatever the rest of the program is compiled for.
#define MEGATRON_DOTS __attribute__((target("avx512f,avx512bf16")))

namespace megatron::kernels::cpu {
namespace {

constexpr std::size_t kPairs = 16;  // of a line in a piece
constexpr int kRowsAtOnce = 8;      // 16 sums, two vectors of b: each pair of a is used twice, each vector of b 8 times

/// 8 rows of sums; `row`: the first of them in a.
MEGATRON_DOTS inline void multiply_rows(const std::byte* row, std::ptrdiff_t row_stride, std::ptrdiff_t piece_stride,
                                        const std::uint16_t* b, std::size_t pieces, float* sums, std::size_t stride,
                                        bool accumulate) {
  __m512 left[kRowsAtOnce], right[kRowsAtOnce];
#pragma GCC unroll 8
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const float* const at = sums + static_cast<std::size_t>(r) * stride;
    left[r] = accumulate ? _mm512_loadu_ps(at) : _mm512_setzero_ps();
    right[r] = accumulate ? _mm512_loadu_ps(at + 16) : _mm512_setzero_ps();
  }
  for (std::size_t piece = 0; piece < pieces; ++piece, row += piece_stride, b += kPieceWords) {
#pragma GCC unroll 2
    for (std::size_t k = 0; k < kPairs; ++k) {
      const auto b_left = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + k * 2 * kTileRows16));
      const auto b_right = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + kTileWords + k * 2 * kTileRows16));
#pragma GCC unroll 8
      for (int r = 0; r < kRowsAtOnce; ++r) {
        std::int32_t pair;
        std::memcpy(&pair, row + r * row_stride + static_cast<std::ptrdiff_t>(k * sizeof(pair)), sizeof(pair));
        const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        left[r] = _mm512_dpbf16_ps(left[r], a, b_left);
        right[r] = _mm512_dpbf16_ps(right[r], a, b_right);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRowsAtOnce; ++r) {
    float* const at = sums + static_cast<std::size_t>(r) * stride;
    _mm512_storeu_ps(at, left[r]);
    _mm512_storeu_ps(at + 16, right[r]);
  }
}

}  // namespace

MEGATRON_DOTS void multiply_tiles(DotTiles&, const LeftPanel& a, const std::uint16_t* b, std::size_t pieces,
                                  float* sums, std::size_t stride, bool accumulate) {
  for (std::size_t first = 0; first < a.rows; first += kRowsAtOnce) {
    const std::byte* const row = a.data + static_cast<std::ptrdiff_t>(first / kTileRows16) * a.second +
                                 static_cast<std::ptrdiff_t>(first % kTileRows16) * a.stride;
    multiply_rows(row, a.stride, a.piece, b, pieces, sums + first * stride, stride, accumulate);
  }
}

}  // namespace megatron::kernels::cpu

#else

namespace megatron::kernels::cpu {

// Never chosen.
void multiply_tiles(DotTiles&, const LeftPanel&, const std::uint16_t*, std::size_t, float*, std::size_t, bool) {}

}  // namespace megatron::kernels::cpu

#endif
