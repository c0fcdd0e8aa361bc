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

/// What of an element is packed: the nearest bf16 number, or the nearest one to what that leaves of a float32.
enum class TilePart : std::uint8_t { High, Low };
/// Left operands have lines of pairs side by side in a tile, right ones pairs of lines.
enum class TileSide : std::uint8_t { Left, Right };
/// The panels of a matrix [lines, depth], `panel_words` from one to the next.
void pack_panels(const Matrix& matrix, std::size_t lines, std::size_t depth, TilePart part, TileSide side,
                 std::uint16_t* to, std::size_t panel_words);

/// c [rows, columns] = or += a [rows, depth] b [depth, columns]. Where `split`, both operands are split in two parts,
/// and c is the sum of three products: high high + high low + low high. Where the epilogue has two halves, `columns`
/// are those of one, whole panels, and b has those of both.
struct TileProduct {
  std::size_t rows, columns, depth;
  Matrix a, b;
  const std::uint16_t *packed_b, *packed_b_low;  ///< b packed by its columns; null: it is packed while it is used
  bool split;
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
