#pragma once
#include <cstddef>
#include <cstdint>

#include "megatron/kernels/cpu/products/epilogue.h"
#include "megatron/kernels/cpu/products/matrix.h"
#include "megatron/kernels/cpu/products/tiles.h"

// Matrix products on the matrix unit (tiles.h): bf16 numbers, float32 sums.
namespace megatron::kernels::cpu {

/// An operand lies in panels of 32 of its lines (rows of a, columns of b); a panel is a run of pieces, 32 lines x 32 of
/// depth, zeros behind the matrix; a piece is two tiles. In memory, 16-bit words [panel][depth / 32][2][16][16][2].
inline constexpr std::size_t kPanelLines = 32, kPieceDepth = 32, kTileWords = 512, kPieceWords = 2 * kTileWords;
constexpr std::size_t panels_of(std::size_t lines) { return (lines + kPanelLines - 1) / kPanelLines; }
constexpr std::size_t pieces_of(std::size_t depth) { return (depth + kPieceDepth - 1) / kPieceDepth; }
/// 16-bit words of a packed operand.
constexpr std::size_t packed_words(std::size_t lines, std::size_t depth) {
  return panels_of(lines) * pieces_of(depth) * kPieceWords;
}

/// Of a float32 element these parts are packed: the nearest bf16 number, then the nearest to what that leaves, then, of
/// three, to what both leave. Two keep 16 bits of the element, three all 24.
inline constexpr std::size_t kMostParts = 3;
/// Left operands have lines of pairs side by side in a tile, right ones pairs of lines.
enum class TileSide : std::uint8_t { Left, Right };
/// The panels of a matrix [lines, depth], `panel_words` from one to the next; of float32 `parts`, two or three,
/// `part_words` from one to the next.
void pack_panels(const Matrix& matrix, std::size_t lines, std::size_t depth, TileSide side, std::uint16_t* to,
                 std::size_t panel_words, std::size_t parts = 1, std::size_t part_words = 0);

/// c [rows, columns] = or += a [rows, depth] b [depth, columns]. Operands of float32 are split in `parts`, and c is the
/// sum of the products of those whose numbers (from 0) add up to less: of two parts three, with an error of some
/// 2^-16 of the terms, of three six, with one below what float32 rounds off. Where the epilogue has two halves,
/// `columns` are those of one, whole panels, and b has those of both.
struct TileProduct {
  std::size_t rows, columns, depth;
  Matrix a, b;
  /// a packed by its rows, b by its columns; null: it is packed while it is used, which an a that is split is not.
  const std::uint16_t *packed_a, *packed_b;
  std::size_t packed_a_part, packed_b_part;  ///< words from a part to the next
  std::size_t parts;                         ///< 1: not split
  std::size_t split_panels;                  ///< of operands that are split: panels of columns that are taken at a time
  bool fills_panels;  ///< whether the columns of the whole product, of which this may be a part, are whole panels
  MutableMatrix c;
  bool accumulate;  ///< not with an epilogue
  Epilogue epilogue;
};

/// Whether the rows of a are read where they lie, as whole tiles of bf16 numbers. Others are packed first, and so are
/// those at the end that fill no panel.
bool reads_in_place(const TileProduct& product);
/// Bytes of scratch of one call.
std::size_t tile_scratch_bytes(const TileProduct& product);
/// One call is one piece of work for one thread. `scratch` is aligned to 64 bytes.
void tile_product(const TileProduct& product, TileUnit unit, std::byte* scratch);

}  // namespace megatron::kernels::cpu
