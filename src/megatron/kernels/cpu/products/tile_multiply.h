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

  LeftPanel from(std::size_t first) const {
    return {data + static_cast<std::ptrdiff_t>(first) * piece, stride, second, piece, rows};
  }
};

/// sums [32, 32] = or += `pieces` pieces of both operands: two tiles by two, each loaded once a piece.
template <class Tiles>
void multiply_tiles(Tiles& tiles, const LeftPanel& a, const std::uint16_t* b, std::size_t pieces, float* sums,
                    std::size_t stride, bool accumulate) {
  const auto row_bytes = static_cast<std::ptrdiff_t>(stride * sizeof(float));
  float* const below = sums + 16 * stride;
  if (accumulate) {
    tiles.template load<0>(sums, row_bytes);
    tiles.template load<1>(sums + 16, row_bytes);
    tiles.template load<2>(below, row_bytes);
    tiles.template load<3>(below + 16, row_bytes);
  } else {
    tiles.template zero<0>();
    tiles.template zero<1>();
    tiles.template zero<2>();
    tiles.template zero<3>();
  }
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
  }
  tiles.template store<0>(sums, row_bytes);
  tiles.template store<1>(sums + 16, row_bytes);
  tiles.template store<2>(below, row_bytes);
  tiles.template store<3>(below + 16, row_bytes);
}
/// The same by AVX512_BF16's dot products of pairs (vdpbf16ps), for a's `rows`, rounded up to 8.
void multiply_tiles(DotTiles&, const LeftPanel& a, const std::uint16_t* b, std::size_t pieces, float* sums,
                    std::size_t stride, bool accumulate);

}  // namespace megatron::kernels::cpu
