#pragma once
#include <cstddef>
#include <cstdint>

#include "megatron/base/files/gguf.h"
#include "megatron/kernels/cpu/products/matrix.h"
#include "megatron/kernels/cpu/products/tiles.h"

// Products of weights in blocks (kernels/quantized/blocks.h) with inputs that are rounded to 8-bit blocks too: of each
// pair of blocks the levels are multiplied as integers, exactly, and the sum times both scales is added in float32,
// block after block. One call is one piece of work for one thread. Every unit gives the same bits, and each row of
// inputs the bits that it gets alone.
namespace megatron::kernels::cpu {

/// What multiplies integers from now on, by the chosen instruction set: AVX512_VNNI where the processor has it.
/// Process-wide.
enum class IntegerUnit { Plain, Avx2, Vnni };
IntegerUnit integer_unit();
/// What multiplies kWideRows rows at once in its place: Hardware where the chosen instruction set is "amx" and the
/// processor has AMX_INT8, Emulated by emulate_tiles(), or None. Process-wide.
TileUnit integer_tiles();

inline constexpr std::size_t kLevels = 32;     ///< of a block
inline constexpr std::size_t kPanelRows = 16;  ///< of weights, side by side
inline constexpr std::size_t kTileRows = 8;    ///< of inputs, at most
inline constexpr std::size_t kWideRows = 16;   ///< of inputs that AMX's tiles multiply
inline constexpr float kLeastInput = 1e-30F;   ///< a block of inputs that are all below is 0

constexpr bool is_4_bit(GgufType type) { return type != GgufType::Q8_0; }
/// What levels are stored above theirs by, so that they are unsigned. Q4_1's are.
constexpr std::int32_t bias_of(GgufType type) { return type == GgufType::Q8_0 ? 128 : type == GgufType::Q4_0 ? 8 : 0; }

/// Bytes of levels and numbers of scales of a panel's block.
constexpr std::size_t level_bytes(GgufType type) { return kPanelRows * kLevels / (is_4_bit(type) ? 2 : 1); }
constexpr std::size_t scale_count(GgufType type) { return type == GgufType::Q4_1 ? 2 * kPanelRows : kPanelRows; }
/// Where byte `i` of row `row` is in the levels of a panel's block.
constexpr std::size_t byte_in_panel(std::size_t row, std::size_t i) { return i / 4 * 4 * kPanelRows + row * 4 + i % 4; }
/// Level number `i` of row `row` of a panel's block, as it is stored.
constexpr std::int32_t level_in(const std::uint8_t* block, GgufType type, std::size_t row, std::size_t i) {
  if (!is_4_bit(type)) return block[byte_in_panel(row, i)];
  const std::uint8_t both = block[byte_in_panel(row, i % (kLevels / 2))];
  return i < kLevels / 2 ? both & 15 : both >> 4;
}

/// Panels of 16 rows of weights, Q8_0, Q4_0 or Q4_1, those past the last zeros. The levels of a block are in the order
/// in which a vector of 64 bytes multiplies them: four numbers of each of 16 rows after four of each. Of 4 bits,
/// numbers 0 … 15 are the lower halves of the bytes in which 16 … 31 are the upper ones.
struct QuantizedPanels {
  GgufType type;
  const std::uint8_t* levels;   ///< [panels, blocks, level_bytes()]
  const std::uint16_t* scales;  ///< [panels, blocks, 16] in fp16; Q4_1: [.., 2, 16], scales and then least values
  std::size_t blocks;           ///< of a row

  std::size_t level_bytes() const { return cpu::level_bytes(type); }
  std::size_t scale_count() const { return cpu::scale_count(type); }
  /// From that panel on.
  QuantizedPanels at(std::size_t panel) const {
    return {type, levels + panel * blocks * level_bytes(), scales + panel * blocks * scale_count(), blocks};
  }
};

/// Up to kTileRows rows of inputs in blocks, or kWideRows, side by side.
struct InputTile {
  std::int8_t* levels;  ///< [blocks, rows, 32]
  float* scales;        ///< [blocks, rows]
  /// [blocks, rows], what takes the bias off: int32 - bias times the sum of the levels, or of Q4_1 float32 scale times
  /// that sum.
  std::uint32_t* corrections;
  std::size_t rows, blocks;
};

/// InputTile::corrections of a block.
std::uint32_t correction_of(GgufType weights, float scale, std::int32_t sum);

/// `from`: [rows, 32 blocks] of `type`, contiguous. The largest number of a block gets level 127 or -127, and its scale
/// stays float32. A block with a number that is not finite has the scale NaN.
void quantize_inputs(const void* from, ElementType type, GgufType weights, const InputTile& to);

/// c [x.rows, columns] = x w^T for the first panel of w, of which at most 16 columns are wanted.
void panel_product(const InputTile& x, const QuantizedPanels& w, std::size_t columns, const MutableMatrix& c);

/// Bytes of a panel's block as tiles read it: a signed level each, the bias taken off.
inline constexpr std::size_t kSignedBytes = kPanelRows * kLevels;
/// The levels of the first `panels` of w, to [panels, blocks, kSignedBytes], for as many rows as there are. Where
/// integer_tiles(), as wide_product().
void sign_levels(const QuantizedPanels& w, std::size_t panels, std::int8_t* to);
/// c [16, columns] = x w^T for as many panels of w as that are; `levels` are theirs.
void wide_product(const InputTile& x, const std::int8_t* levels, const QuantizedPanels& w, std::size_t columns,
                  const MutableMatrix& c);

// The units.
void quantize_inputs_avx2(const void* from, ElementType type, GgufType weights, const InputTile& to);
void panel_product_avx2(const InputTile& x, const QuantizedPanels& w, std::size_t columns, const MutableMatrix& c);
void panel_product_vnni(const InputTile& x, const QuantizedPanels& w, std::size_t columns, const MutableMatrix& c);

}  // namespace megatron::kernels::cpu
