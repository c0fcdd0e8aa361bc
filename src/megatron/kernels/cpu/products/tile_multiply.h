#pragma once
#include <cstddef>
#include <cstdint>

#include "megatron/kernels/cpu/products/tile_product.h"

// The innermost product on the matrix unit, which matrix products and attention share.
namespace megatron::kernels::cpu {

/// Bytes of a row of a packed tile.
inline constexpr std::ptrdiff_t kTileRowBytes = 64;

/// 32 rows of the left operand as two tiles for each piece of depth: packed, or where they lie.
struct LeftPanel {
  const std::byte* data;
  std::ptrdiff_t stride, second, piece;  ///< bytes between rows of a tile, to the second tile, to the next piece
  std::size_t rows = 32;                 ///< those that are wanted; tiles compute all
};

/// Prefetches while the matrix unit computes: with each piece a line of the caches from each of two places, `step`
/// bytes behind the ones before, none where they are null. Rows that lie a page apart the processor does not foresee.
struct Ahead {
  const std::byte *first = nullptr, *second = nullptr;
  std::ptrdiff_t step = 0;

  template <int kCache>
  void ask() {
    if (first == nullptr) return;
    __builtin_prefetch(first, 0, 4 - kCache);
    __builtin_prefetch(second, 0, 4 - kCache);
    first += step;
    second += step;
  }
};
/// Prefetches into the first cache, of left operands, and into the second.
struct AheadOfBoth {
  Ahead left, right;
  void ask() {
    left.ask<1>();
    right.ask<2>();
  }
};

/// A packed panel.
inline LeftPanel packed_panel(const std::uint16_t* left) {
  constexpr std::ptrdiff_t kSecond = kTileWords * sizeof(std::uint16_t), kPieceBytes = 2 * kSecond;
  return {reinterpret_cast<const std::byte*>(left), kTileRowBytes, kSecond, kPieceBytes};
}

/// The four tiles of sums [32, 32].
class SumTiles {
 public:
  template <class Tiles>
  SumTiles(Tiles& tiles, float* sums, std::size_t stride, bool accumulate)
      : above_(sums), below_(sums + 16 * stride), row_bytes_(static_cast<std::ptrdiff_t>(stride * sizeof(float))) {
    if (accumulate) {
      tiles.template load<0>(above_, row_bytes_);
      tiles.template load<1>(above_ + 16, row_bytes_);
      tiles.template load<2>(below_, row_bytes_);
      tiles.template load<3>(below_ + 16, row_bytes_);
    } else {
      tiles.template zero<0>();
      tiles.template zero<1>();
      tiles.template zero<2>();
      tiles.template zero<3>();
    }
  }
  template <class Tiles>
  void store(Tiles& tiles) const {
    tiles.template store<0>(above_, row_bytes_);
    tiles.template store<1>(above_ + 16, row_bytes_);
    tiles.template store<2>(below_, row_bytes_);
    tiles.template store<3>(below_ + 16, row_bytes_);
  }

 private:
  float *above_, *below_;
  std::ptrdiff_t row_bytes_;
};

/// sums [32, 32] = or += `pieces` pieces of both operands: two tiles by two, each loaded once a piece.
template <class Tiles>
void multiply_tiles(Tiles& tiles, const LeftPanel& a, const std::uint16_t* b, std::size_t pieces, float* sums,
                    std::size_t stride, bool accumulate, AheadOfBoth ahead = {}) {
  const SumTiles at(tiles, sums, stride, accumulate);
  const std::byte* left = a.data;
  for (std::size_t i = 0; i < pieces; ++i, left += a.piece, b += kPieceWords) {
    tiles.template load<6>(b, kTileRowBytes);
    tiles.template load<4>(left, a.stride);
    tiles.template multiply<0, 4, 6>();
    tiles.template load<7>(b + kTileWords, kTileRowBytes);
    tiles.template multiply<1, 4, 7>();
    tiles.template load<5>(left + a.second, a.stride);
    tiles.template multiply<2, 5, 6>();
    tiles.template multiply<3, 5, 7>();
    ahead.ask();
  }
  at.store(tiles);
}
/// The same by AVX512_BF16's dot products of pairs (vdpbf16ps), for a's `rows`, rounded up to 8.
void multiply_tiles(DotTiles&, const LeftPanel& a, const std::uint16_t* b, std::size_t pieces, float* sums,
                    std::size_t stride, bool accumulate);
inline void multiply_tiles(DotTiles& dots, const LeftPanel& a, const std::uint16_t* b, std::size_t pieces, float* sums,
                           std::size_t stride, bool accumulate, AheadOfBoth /*ahead*/) {
  multiply_tiles(dots, a, b, pieces, sums, stride, accumulate);
}

/// Both parts of each operand, which are split (tile_product.h): sums = or += high high + low high + high low.
template <class Tiles>
void multiply_split_tiles(Tiles& tiles, const LeftPanel& high, const LeftPanel& low, const std::uint16_t* b,
                          const std::uint16_t* b_low, std::size_t pieces, float* sums, std::size_t stride,
                          bool accumulate, AheadOfBoth ahead) {
  const SumTiles at(tiles, sums, stride, accumulate);
  const std::byte *left = high.data, *left_low = low.data;
  for (std::size_t i = 0; i < pieces; ++i, b += kPieceWords, b_low += kPieceWords) {
    tiles.template load<6>(b, kTileRowBytes);
    tiles.template load<7>(b + kTileWords, kTileRowBytes);
    tiles.template load<4>(left_low, low.stride);
    tiles.template multiply<0, 4, 6>();
    tiles.template multiply<1, 4, 7>();
    tiles.template load<5>(left_low + low.second, low.stride);
    tiles.template multiply<2, 5, 6>();
    tiles.template multiply<3, 5, 7>();
    tiles.template load<4>(left, high.stride);
    tiles.template multiply<0, 4, 6>();
    tiles.template multiply<1, 4, 7>();
    tiles.template load<5>(left + high.second, high.stride);
    tiles.template multiply<2, 5, 6>();
    tiles.template load<6>(b_low, kTileRowBytes);
    tiles.template multiply<3, 5, 7>();
    tiles.template load<7>(b_low + kTileWords, kTileRowBytes);
    tiles.template multiply<0, 4, 6>();
    tiles.template multiply<1, 4, 7>();
    tiles.template multiply<2, 5, 6>();
    tiles.template multiply<3, 5, 7>();
    left += high.piece;
    left_low += low.piece;
    ahead.ask();
  }
  at.store(tiles);
}
inline void multiply_split_tiles(DotTiles& dots, const LeftPanel& high, const LeftPanel& low, const std::uint16_t* b,
                                 const std::uint16_t* b_low, std::size_t pieces, float* sums, std::size_t stride,
                                 bool accumulate, AheadOfBoth /*ahead*/) {
  multiply_tiles(dots, high, b, pieces, sums, stride, accumulate);
  multiply_tiles(dots, low, b, pieces, sums, stride, true);
  multiply_tiles(dots, high, b_low, pieces, sums, stride, true);
}

}  // namespace megatron::kernels::cpu
