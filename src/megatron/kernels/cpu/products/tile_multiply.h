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

/// Where the four tiles of sums [32, 32] lie: in a matrix, or one behind the other.
struct SumPlace {
  float* data;
  std::size_t stride, right, below;  ///< floats between rows of a tile, to the tile right of it, to the one below

  static SumPlace in_matrix(float* data, std::size_t stride) { return {data, stride, 16, 16 * stride}; }
  static SumPlace in_block(float* data) { return {data, 16, 256, 512}; }
};
inline constexpr std::size_t kSumFloats = 32 * 32;

inline void zero_sums(auto& tiles) {
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template zero<2>();
  tiles.template zero<3>();
}
inline void load_sums(auto& tiles, const SumPlace& from) {
  const auto row_bytes = static_cast<std::ptrdiff_t>(from.stride * sizeof(float));
  tiles.template load<0>(from.data, row_bytes);
  tiles.template load<1>(from.data + from.right, row_bytes);
  tiles.template load<2>(from.data + from.below, row_bytes);
  tiles.template load<3>(from.data + from.below + from.right, row_bytes);
}
inline void store_sums(auto& tiles, const SumPlace& to) {
  const auto row_bytes = static_cast<std::ptrdiff_t>(to.stride * sizeof(float));
  tiles.template store<0>(to.data, row_bytes);
  tiles.template store<1>(to.data + to.right, row_bytes);
  tiles.template store<2>(to.data + to.below, row_bytes);
  tiles.template store<3>(to.data + to.below + to.right, row_bytes);
}

/// sums [32, 32] = or += `pieces` pieces of both operands: two tiles by two, each loaded once a piece.
template <class Tiles>
void multiply_tiles(Tiles& tiles, const LeftPanel& a, const std::uint16_t* b, std::size_t pieces, float* sums,
                    std::size_t stride, bool accumulate, const AheadOfBoth& what = {}) {
  const SumPlace at = SumPlace::in_matrix(sums, stride);
  accumulate ? load_sums(tiles, at) : zero_sums(tiles);
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
  store_sums(tiles, at);
}
/// multiply_tiles() by AVX512_BF16's dot products of pairs (vdpbf16ps), for a's `rows`, rounded up to 8.
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
/// The sums at `from` (null: 0) and the products of those parts of both operands that count (tile_product.h), to `to`.
template <const auto& kPairs, class Tiles>
void multiply_parts(Tiles& tiles, const LeftPanel& a, const std::uint16_t* b, const PartSteps& parts,
                    std::size_t pieces, const SumPlace& from, const SumPlace& to, AheadOfParts& ahead) {
  from.data == nullptr ? zero_sums(tiles) : load_sums(tiles, from);
  const std::byte* left = a.data;
  for (std::size_t i = 0; i < pieces; ++i, left += a.piece, b += kPieceWords) {
    [&]<std::size_t... kPair>(std::index_sequence<kPair...>) {
      (multiply_pair<kPairs, kPair>(tiles, left, a, b, parts), ...);
    }
    (std::make_index_sequence<std::size(kPairs)>());
    ahead.ask();
  }
  store_sums(tiles, to);
}
template <class Tiles>
void multiply_split_tiles(Tiles& tiles, const LeftPanel& a, const std::uint16_t* b, const PartSteps& parts,
                          std::size_t pieces, const SumPlace& from, const SumPlace& to, AheadOfParts ahead = {}) {
  if (parts.count == 2)
    multiply_parts<kPairsOfTwo>(tiles, a, b, parts, pieces, from, to, ahead);
  else
    multiply_parts<kPairsOfThree>(tiles, a, b, parts, pieces, from, to, ahead);
}

}  // namespace megatron::kernels::cpu
