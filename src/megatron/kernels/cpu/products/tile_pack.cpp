#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/products/tile_pack.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <algorithm>

#include "megatron/kernels/cpu/elementwise/rows-inl.h"
#include "megatron/kernels/cpu/products/half-inl.h"
#include "megatron/kernels/cpu/products/tile_product.h"
#include "megatron/kernels/cpu/products/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

using Pairs = hn::RebindToUnsigned<Floats>;  // a lane is two bf16 numbers, the first one below
using P = hn::Vec<Pairs>;
constexpr std::size_t kTileLines = 16, kTilePairs = 16;
// Panels whose pieces are taken side by side: 24 KB, or 8 KB that are turned where they are in the first cache.
constexpr std::size_t kRightPanels = 12, kLeftPanels = 4;
// Elements that are asked for ahead in each line: 32 lines are more than the processor follows.
constexpr std::size_t kAheadAlong = 4 * kPieceDepth;

/// How elements become the words that are packed: bf16 numbers as they are.
struct OfBf16 {
  using Element = c10::BFloat16;
  static constexpr std::size_t kParts = 1;
  static HWY_INLINE void split(const Element* p, std::size_t lanes, HalfBits (&parts)[1]) {
    parts[0] = load_bits(p, lanes);
  }
};
/// float32 numbers as the nearest bf16 ones, then the nearest to what those before leave.
template <std::size_t kCount, bool kByInstruction>
struct OfFloat32 {
  using Element = float;
  static constexpr std::size_t kParts = kCount;
  static HWY_INLINE HalfBits rounded(F v) {
#if HWY_TARGET <= HWY_AVX3
    if constexpr (kByInstruction) return to_bf16_by_instruction(v);
#endif
    return to_bf16(v);
  }
  static HWY_INLINE void split(const float* p, std::size_t lanes, HalfBits (&parts)[kCount]) {
    F left = load(p, lanes);
#pragma GCC unroll 3
    for (std::size_t i = 0; i < kCount; ++i) {
      parts[i] = rounded(left);
      if (i + 1 < kCount)
        left = hn::Sub(left, hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Pairs(), parts[i]))));
    }
  }
};

HWY_INLINE P pair_up(HalfBits first, HalfBits second) {
  const Pairs d;
  return hn::Or(hn::PromoteTo(d, first), hn::ShiftLeft<16>(hn::PromoteTo(d, second)));
}
/// `lanes` elements of a row and of the one below it, in pairs.
template <class Of>
HWY_INLINE void pairs_of_rows(const typename Of::Element* row, const typename Of::Element* below, std::size_t lanes,
                              P (&pairs)[Of::kParts]) {
  HalfBits first[Of::kParts], second[Of::kParts];
  Of::split(row, lanes, first);
  Of::split(below, lanes, second);
#pragma GCC unroll 3
  for (std::size_t i = 0; i < Of::kParts; ++i) pairs[i] = pair_up(first[i], second[i]);
}

/// Pairs of neighbours of one run of `count` elements, zeros behind it.
template <class Of>
HWY_INLINE void pairs_along(const typename Of::Element* p, std::size_t count, P (&pairs)[Of::kParts]) {
  const Halves d;
  const std::size_t first = std::min(count, kLanes);
  HalfBits below[Of::kParts], above[Of::kParts];
  Of::split(p, first, below);
  for (HalfBits& each : above) each = hn::Zero(d);
  if (count > kLanes) Of::split(p + kLanes, count - kLanes, above);
#pragma GCC unroll 3
  for (std::size_t i = 0; i < Of::kParts; ++i) {
    alignas(64) std::uint16_t words[2 * kLanes];
    hn::Store(below[i], d, words);
    hn::Store(above[i], d, words + kLanes);
    pairs[i] = hn::Load(Pairs(), reinterpret_cast<const std::uint32_t*>(words));
  }
}

template <class Of>
HWY_INLINE void whole_pairs_along(const typename Of::Element* p, P (&pairs)[Of::kParts]) {
  if constexpr (Of::kParts == 1) {  // they lie as pairs already
    pairs[0] = hn::LoadU(Pairs(), reinterpret_cast<const std::uint32_t*>(p));
  } else {
    const hn::Repartition<std::uint16_t, Pairs> both;
    HalfBits below[Of::kParts], above[Of::kParts];
    Of::split(p, kLanes, below);
    Of::split(p + kLanes, kLanes, above);
#pragma GCC unroll 3
    for (std::size_t i = 0; i < Of::kParts; ++i) pairs[i] = hn::BitCast(Pairs(), hn::Combine(both, above[i], below[i]));
  }
}

/// Vectors of pairs of a tile's square of lines and depth: row i is of line i, with depths from `corner` on, where they
/// lie side by side (`along`), else of all lines, of the i-th pair of depths. Zeros where the matrix, of which `lines`
/// and `depth` are left, has ended.
template <class Of>
HWY_INLINE void pairs_of_square(const typename Of::Element* corner, std::ptrdiff_t line_stride,
                                std::ptrdiff_t depth_stride, std::size_t lines, std::size_t depth,
                                P (&block)[Of::kParts][kLanes]) {
  const bool whole = lines >= kLanes && depth >= 2 * kLanes;
  for (std::size_t i = 0; i < kLanes; ++i) {
    P pairs[Of::kParts];
    for (P& each : pairs) each = hn::Zero(Pairs());
    if (depth_stride == 1) {
      const typename Of::Element* const line = corner + static_cast<std::ptrdiff_t>(i) * line_stride;
      if (whole) {
        ask_for_row<typename Of::Element>(reinterpret_cast<const std::byte*>(line + kAheadAlong), kPieceDepth);
        whole_pairs_along<Of>(line, pairs);
      } else if (i < lines && depth > 0) {
        pairs_along<Of>(line, std::min(depth, 2 * kLanes), pairs);
      }
    } else {
      const std::size_t k = 2 * i, count = std::min(lines, kLanes);
      const typename Of::Element* const row = corner + static_cast<std::ptrdiff_t>(k) * depth_stride;
      if (k + 1 < depth && count > 0) {
        pairs_of_rows<Of>(row, row + depth_stride, count, pairs);
      } else if (k < depth && count > 0) {
        HalfBits last[Of::kParts];
        Of::split(row, count, last);
#pragma GCC unroll 3
        for (std::size_t part = 0; part < Of::kParts; ++part) pairs[part] = hn::PromoteTo(Pairs(), last[part]);
      }
    }
#pragma GCC unroll 3
    for (std::size_t part = 0; part < Of::kParts; ++part) block[part][i] = pairs[part];
  }
}

/// One tile, of each part, from the matrix [lines, depth] whose element (line, k) is at line * line_stride +
/// k * depth_stride; `part_words` from one part to the next.
template <class Of>
void tile(const typename Of::Element* from, std::ptrdiff_t line_stride, std::ptrdiff_t depth_stride, std::size_t lines,
          std::size_t depth, TileSide side, std::uint16_t* to, std::size_t part_words) {
  const bool along = depth_stride == 1;
  P block[Of::kParts][kLanes];
  for (std::size_t line = 0; line < kTileLines; line += kLanes) {
    for (std::size_t pair = 0; pair < kTilePairs; pair += kLanes) {
      const std::size_t lines_left = lines > line ? lines - line : 0, left = depth > 2 * pair ? depth - 2 * pair : 0;
      const typename Of::Element* const corner =
          from + static_cast<std::ptrdiff_t>(line) * line_stride + static_cast<std::ptrdiff_t>(2 * pair) * depth_stride;
      pairs_of_square<Of>(corner, line_stride, depth_stride, lines_left, left, block);
      for (std::size_t part = 0; part < Of::kParts; ++part) {
        if (along != (side == TileSide::Left)) transpose(block[part]);
        auto* const words = reinterpret_cast<std::uint32_t*>(to + part * part_words);
        for (std::size_t i = 0; i < kLanes; ++i) {
          const std::size_t row = side == TileSide::Left ? line + i : pair + i;
          hn::StoreU(block[part][i], Pairs(), words + row * 16 + (side == TileSide::Left ? pair : line));
        }
      }
    }
  }
}

/// One panel of at most kPanelLines lines, from depth `k` on.
template <class Of>
void panel(const Matrix& m, std::size_t lines, std::size_t depth, std::size_t k, TileSide side, std::uint16_t* to,
           std::size_t part_words) {
  for (to += k / kPieceDepth * kPieceWords; k < depth; k += kPieceDepth) {
    for (std::size_t line = 0; line < kPanelLines; line += kTileLines, to += kTileWords) {
      const std::size_t count = lines > line ? lines - line : 0;
      const Matrix corner = count > 0 ? m.at(line, k) : m;
      tile<Of>(static_cast<const typename Of::Element*>(corner.data), m.row, m.column, count, depth - k, side, to,
               part_words);
    }
  }
}

#if HWY_TARGET <= HWY_AVX3
/// Pairs of the words of two rows, of a panel's lines.
HWY_INLINE void pair_words(const c10::BFloat16* row, const c10::BFloat16* below, std::uint16_t* to) {
  alignas(64) static constexpr struct Order {
    std::uint16_t at[2][32];
    constexpr Order() : at() {
      for (std::uint16_t i = 0; i < 32; ++i) {
        at[0][i] = static_cast<std::uint16_t>(i / 2 + i % 2 * 32);
        at[1][i] = static_cast<std::uint16_t>(at[0][i] + 16);
      }
    }
  } kOrder;
  const __m512i a = _mm512_loadu_si512(row), b = _mm512_loadu_si512(below);
  _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, _mm512_load_si512(kOrder.at[0]), b));
  _mm512_storeu_si512(to + kTileWords, _mm512_permutex2var_epi16(a, _mm512_load_si512(kOrder.at[1]), b));
}
#endif

/// Pairs of the numbers of two rows: `to` is a row of the first tile of a right operand's piece, whose second tile
/// follows.
template <class Of>
HWY_INLINE void pair_rows(const typename Of::Element* row, const typename Of::Element* below, std::uint16_t* to,
                          std::size_t part_words) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (Of::kParts == 1) return pair_words(row, below, to);
#endif
  for (std::size_t line = 0; line < kPanelLines; line += kLanes) {
    P pairs[Of::kParts];
    pairs_of_rows<Of>(row + line, below + line, kLanes, pairs);
    std::uint16_t* const at = to + line / kTileLines * kTileWords + line % kTileLines * 2;
#pragma GCC unroll 3
    for (std::size_t part = 0; part < Of::kParts; ++part)
      hn::StoreU(pairs[part], Pairs(), reinterpret_cast<std::uint32_t*>(at + part * part_words));
  }
}

/// One piece of `panels` whole panels of a matrix whose lines lie side by side, `row`: from its first row of depth.
/// Rows are read from end to end: whole lines of the caches, each once.
template <class Of>
void right_piece(const typename Of::Element* row, std::ptrdiff_t stride, std::size_t panels, std::uint16_t* to,
                 std::size_t panel_words, std::size_t part_words) {
  const std::ptrdiff_t piece = static_cast<std::ptrdiff_t>(kPieceDepth) * stride;  // the next one is asked for
  for (std::size_t pair = 0; pair < kTilePairs; ++pair, row += 2 * stride)
    for (std::size_t p = 0; p < panels; ++p) {
      ask_for_row<typename Of::Element>(reinterpret_cast<const std::byte*>(row + p * kPanelLines + piece), kPanelLines);
      ask_for_row<typename Of::Element>(reinterpret_cast<const std::byte*>(row + p * kPanelLines + piece + stride),
                                        kPanelLines);
      pair_rows<Of>(row + p * kPanelLines, row + stride + p * kPanelLines, to + p * panel_words + 2 * pair * kTilePairs,
                    part_words);
    }
}

/// A tile of a right operand to one of a left operand.
HWY_INLINE void turn_tile(const std::uint16_t* from, std::uint16_t* to) {
  const Pairs d;
  P block[kLanes];
  for (std::size_t pair = 0; pair < kTilePairs; pair += kLanes) {
    for (std::size_t line = 0; line < kTileLines; line += kLanes) {
      for (std::size_t i = 0; i < kLanes; ++i)
        block[i] = hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(from) + (pair + i) * kTileLines + line);
      transpose(block);
      for (std::size_t i = 0; i < kLanes; ++i)
        hn::StoreU(block[i], d, reinterpret_cast<std::uint32_t*>(to) + (line + i) * kTilePairs + pair);
    }
  }
}

/// All whole pieces of whole panels of a matrix whose lines lie side by side.
template <class Of>
void whole_panels(const Matrix& m, std::size_t panels, std::size_t pieces, TileSide side, std::uint16_t* to,
                  std::size_t panel_words, std::size_t part_words) {
  const std::size_t at_once = side == TileSide::Right ? kRightPanels : kLeftPanels;
  for (std::size_t first = 0; first < panels; first += at_once) {
    const std::size_t count = std::min(at_once, panels - first);
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      const typename Of::Element* const row =
          static_cast<const typename Of::Element*>(m.at(first * kPanelLines, piece * kPieceDepth).data);
      std::uint16_t* const at = to + first * panel_words + piece * kPieceWords;
      if (side == TileSide::Right) {
        right_piece<Of>(row, m.column, count, at, panel_words, part_words);
        continue;
      }
      constexpr std::size_t kTurnedWords = kLeftPanels * kPieceWords;
      alignas(64) std::uint16_t turned[Of::kParts * kTurnedWords];
      right_piece<Of>(row, m.column, count, turned, kPieceWords, kTurnedWords);
      for (std::size_t part = 0; part < Of::kParts; ++part)
        for (std::size_t p = 0; p < count; ++p)
          for (std::size_t tile_words = 0; tile_words < kPieceWords; tile_words += kTileWords)
            turn_tile(turned + part * kTurnedWords + p * kPieceWords + tile_words,
                      at + part * part_words + p * panel_words + tile_words);
    }
  }
}

template <class Of>
void pack_parts(const Matrix& m, std::size_t lines, std::size_t depth, TileSide side, std::uint16_t* to,
                std::size_t panel_words, std::size_t part_words) {
  const bool side_by_side = m.row == 1 && m.column != 1;
  const std::size_t whole = side_by_side ? lines / kPanelLines : 0, pieces = depth / kPieceDepth;
  whole_panels<Of>(m, whole, pieces, side, to, panel_words, part_words);
  for (std::size_t line = 0; line < lines; line += kPanelLines)
    panel<Of>(m.at(line, 0), std::min(kPanelLines, lines - line), depth,
              line < whole * kPanelLines ? pieces * kPieceDepth : 0, side, to + line / kPanelLines * panel_words,
              part_words);
}

void pack(const Matrix& m, std::size_t lines, std::size_t depth, TileSide side, std::uint16_t* to,
          std::size_t panel_words, std::size_t parts, std::size_t part_words) {
  if (m.type == ElementType::BFloat16) return pack_parts<OfBf16>(m, lines, depth, side, to, panel_words, part_words);
  const bool by_instruction = rounds_by_instruction.load(std::memory_order_relaxed);
  const auto pack_float32 = [&]<std::size_t kParts>() {
    if (by_instruction)
      pack_parts<OfFloat32<kParts, true>>(m, lines, depth, side, to, panel_words, part_words);
    else
      pack_parts<OfFloat32<kParts, false>>(m, lines, depth, side, to, panel_words, part_words);
  };
  if (parts == 2)
    pack_float32.template operator()<2>();
  else
    pack_float32.template operator()<3>();
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(pack);

void pack_panels(const Matrix& matrix, std::size_t lines, std::size_t depth, TileSide side, std::uint16_t* to,
                 std::size_t panel_words, std::size_t parts, std::size_t part_words) {
  HWY_DYNAMIC_DISPATCH(pack)(matrix, lines, depth, side, to, panel_words, parts, part_words);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
