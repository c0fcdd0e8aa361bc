#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

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
/// Asks for a quarter of a piece of a packed operand into the first cache: in the second the matrix unit would wait for
/// each line of a tile.
template <std::size_t kQuarter>
void ask_for_quarter(const std::uint16_t* piece) {
  constexpr std::size_t kLines = 8, kLineWords = 32;
#pragma GCC unroll 8
  for (std::size_t i = kQuarter * kLines; i < (kQuarter + 1) * kLines; ++i)
    __builtin_prefetch(piece + i * kLineWords, 0, 3);
}
/// Prefetches into the first cache, of left operands, and into the second. Passed by reference and read by words: a
/// copy by vectors of what was just written waits until all stores of tiles before it are done, a tenth of a product's
/// time.
struct AheadOfBoth {
  Ahead left, right;
  const std::uint16_t* next = nullptr;  ///< the right panel that is multiplied next; null: what lies behind this one
  void ask() {
    left.ask<1>();
    right.ask<2>();
  }
};

/// Runs of 2 KB of packed operands that are asked for into the second cache while four pieces are multiplied, the lines
/// of each in four shares; null: none.
struct AheadOfParts {
  std::array<const std::byte*, 3> runs = {};

  void ask() {
    constexpr std::size_t kLines = 8, kLine = 64;
    for (const std::byte*& run : runs) {
      if (run == nullptr) continue;
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kLines; ++i) __builtin_prefetch(run + i * kLine, 0, 2);
      run += kLines * kLine;
    }
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
                    std::size_t stride, bool accumulate, const AheadOfBoth& what = {}) {
  const SumTiles at(tiles, sums, stride, accumulate);
  AheadOfBoth ahead = what;
  const std::byte* left = a.data;
  const std::uint16_t* const next = what.next != nullptr ? what.next : b + pieces * kPieceWords;
  for (std::size_t i = 0; i < pieces; ++i, left += a.piece, b += kPieceWords) {
    const std::uint16_t* const soon = i + 1 < pieces ? b + kPieceWords : next;
    tiles.template load<6>(b, kTileRowBytes);
    tiles.template load<4>(left, a.stride);
    ask_for_quarter<0>(soon);
    tiles.template multiply<0, 4, 6>();
    tiles.template load<7>(b + kTileWords, kTileRowBytes);
    ask_for_quarter<1>(soon);
    tiles.template multiply<1, 4, 7>();
    tiles.template load<5>(left + a.second, a.stride);
    ask_for_quarter<2>(soon);
    tiles.template multiply<2, 5, 6>();
    ask_for_quarter<3>(soon);
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

/// Where the parts of an operand lie (tile_product.h): bytes of the left one, words of the right one, from one to the
/// next.
struct PartSteps {
  std::size_t count;
  std::ptrdiff_t left;
  std::size_t right;
};

/// Which of the six or three products of parts come after one another, so that each but the first needs one new part:
/// left, right.
struct PartPair {
  std::uint8_t left, right;
};
inline constexpr PartPair kPairsOfTwo[] = {{1, 0}, {0, 0}, {0, 1}};
inline constexpr PartPair kPairsOfThree[] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};

/// One piece of one of these products: number kPair of kPairs.
template <const auto& kPairs, std::size_t kPair, class Tiles>
void multiply_pair(Tiles& tiles, const std::byte* a, const LeftPanel& of, const std::uint16_t* b,
                   const PartSteps& parts) {
  constexpr PartPair kThis = kPairs[kPair], kBefore = kPairs[kPair > 0 ? kPair - 1 : 0];
  constexpr bool kNewLeft = kPair == 0 || kThis.left != kBefore.left;
  constexpr bool kNewRight = kPair == 0 || kThis.right != kBefore.right;
  a += kThis.left * parts.left;
  b += kThis.right * parts.right;
  if constexpr (kNewLeft) tiles.template load<4>(a, of.stride);
  if constexpr (kNewRight) tiles.template load<6>(b, kTileRowBytes);
  tiles.template multiply<0, 4, 6>();
  if constexpr (kNewRight) tiles.template load<7>(b + kTileWords, kTileRowBytes);
  tiles.template multiply<1, 4, 7>();
  if constexpr (kNewLeft) tiles.template load<5>(a + of.second, of.stride);
  tiles.template multiply<2, 5, 6>();
  tiles.template multiply<3, 5, 7>();
}
/// sums = or += the products of those parts of both operands that count (tile_product.h).
template <const auto& kPairs, class Tiles>
void multiply_parts(Tiles& tiles, const LeftPanel& a, const std::uint16_t* b, const PartSteps& parts,
                    std::size_t pieces, float* sums, std::size_t stride, bool accumulate, AheadOfParts& ahead) {
  const SumTiles at(tiles, sums, stride, accumulate);
  const std::byte* left = a.data;
  for (std::size_t i = 0; i < pieces; ++i, left += a.piece, b += kPieceWords) {
    [&]<std::size_t... kPair>(std::index_sequence<kPair...>) {
      (multiply_pair<kPairs, kPair>(tiles, left, a, b, parts), ...);
    }
    (std::make_index_sequence<std::size(kPairs)>());
    ahead.ask();
  }
  at.store(tiles);
}
template <class Tiles>
void multiply_split_tiles(Tiles& tiles, const LeftPanel& a, const std::uint16_t* b, const PartSteps& parts,
                          std::size_t pieces, float* sums, std::size_t stride, bool accumulate,
                          AheadOfParts ahead = {}) {
  if (parts.count == 2)
    multiply_parts<kPairsOfTwo>(tiles, a, b, parts, pieces, sums, stride, accumulate, ahead);
  else
    multiply_parts<kPairsOfThree>(tiles, a, b, parts, pieces, sums, stride, accumulate, ahead);
}

}  // namespace megatron::kernels::cpu
