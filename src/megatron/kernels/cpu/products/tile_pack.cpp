#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/products/tile_pack.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <algorithm>

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

/// `lanes` elements as bf16 bits.
HWY_INLINE HalfBits bits(const c10::BFloat16* p, std::size_t lanes, TilePart) { return load_bits(p, lanes); }
HWY_INLINE HalfBits bits(const float* p, std::size_t lanes, TilePart part) {
  const F v = load(p, lanes);
  const HalfBits high = to_bf16(v);
  if (part == TilePart::High) return high;
  return to_bf16(hn::Sub(v, hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Pairs(), high)))));
}

HWY_INLINE P pair_up(HalfBits first, HalfBits second) {
  const Pairs d;
  return hn::Or(hn::PromoteTo(d, first), hn::ShiftLeft<16>(hn::PromoteTo(d, second)));
}

/// Pairs of neighbours of one run of `count` elements, zeros behind it.
template <class T>
HWY_INLINE P pairs_along(const T* p, std::size_t count, TilePart part) {
  const Halves d;
  alignas(64) std::uint16_t words[2 * kLanes] = {};
  const std::size_t first = std::min(count, kLanes);
  hn::Store(bits(p, first, part), d, words);
  if (count > kLanes) hn::Store(bits(p + kLanes, count - kLanes, part), d, words + kLanes);
  return hn::Load(Pairs(), reinterpret_cast<const std::uint32_t*>(words));
}

HWY_INLINE P whole_pairs_along(const c10::BFloat16* p, TilePart) {
  return hn::LoadU(Pairs(), reinterpret_cast<const std::uint32_t*>(p));  // they lie as pairs already
}
HWY_INLINE P whole_pairs_along(const float* p, TilePart part) {
  const hn::Repartition<std::uint16_t, Pairs> both;
  return hn::BitCast(Pairs(), hn::Combine(both, bits(p + kLanes, kLanes, part), bits(p, kLanes, part)));
}

/// Vectors of pairs of one line where depth_stride is 1, else of lines of one pair; none of them is cut short.
template <class T>
HWY_INLINE void whole_block(const T* corner, std::ptrdiff_t line_stride, std::ptrdiff_t depth_stride, TilePart part,
                            P (&block)[kLanes]) {
  for (std::size_t i = 0; i < kLanes; ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i);
    if (depth_stride == 1) {
      block[i] = whole_pairs_along(corner + at * line_stride, part);
    } else {
      const T* const row = corner + 2 * at * depth_stride;
      block[i] = pair_up(bits(row, kLanes, part), bits(row + depth_stride, kLanes, part));
    }
  }
}

/// One tile from the matrix [lines, depth] whose element (line, k) is at line * line_stride + k * depth_stride.
template <class T>
void tile(const T* from, std::ptrdiff_t line_stride, std::ptrdiff_t depth_stride, std::size_t lines, std::size_t depth,
          TilePart part, TileSide side, std::uint32_t* to) {
  const Pairs d;
  const bool along = depth_stride == 1;  // the vectors below hold pairs of one line, else lines of one pair
  P block[kLanes];
  for (std::size_t line = 0; line < kTileLines; line += kLanes) {
    for (std::size_t pair = 0; pair < kTilePairs; pair += kLanes) {
      const std::size_t lines_left = lines > line ? lines - line : 0, left = depth > 2 * pair ? depth - 2 * pair : 0;
      const T* const corner =
          from + static_cast<std::ptrdiff_t>(line) * line_stride + static_cast<std::ptrdiff_t>(2 * pair) * depth_stride;
      const bool whole = lines_left >= kLanes && left >= 2 * kLanes;
      if (whole) whole_block(corner, line_stride, depth_stride, part, block);
      for (std::size_t i = 0; i < kLanes && !whole; ++i) {
        const std::size_t k = 2 * i, count = std::min(lines_left, kLanes);
        if (along) {
          block[i] = i < lines_left && left > 0 ? pairs_along(corner + static_cast<std::ptrdiff_t>(i) * line_stride,
                                                              std::min(left, 2 * kLanes), part)
                                                : hn::Zero(d);
        } else {
          const T* const row = corner + static_cast<std::ptrdiff_t>(k) * depth_stride;
          const HalfBits none = hn::Zero(Halves());
          block[i] = pair_up(k < left && count > 0 ? bits(row, count, part) : none,
                             k + 1 < left && count > 0 ? bits(row + depth_stride, count, part) : none);
        }
      }
      if (along != (side == TileSide::Left)) transpose(block);
      for (std::size_t i = 0; i < kLanes; ++i) {
        const std::size_t row = side == TileSide::Left ? line + i : pair + i;
        hn::StoreU(block[i], d, to + row * 16 + (side == TileSide::Left ? pair : line));
      }
    }
  }
}

/// One panel of at most kPanelLines lines, from depth `k` on.
template <class T>
void panel(const Matrix& m, std::size_t lines, std::size_t depth, std::size_t k, TilePart part, TileSide side,
           std::uint16_t* to) {
  for (to += k / kPieceDepth * kPieceWords; k < depth; k += kPieceDepth) {
    for (std::size_t line = 0; line < kPanelLines; line += kTileLines, to += kTileWords) {
      const std::size_t count = lines > line ? lines - line : 0;
      const Matrix corner = count > 0 ? m.at(line, k) : m;
      tile(static_cast<const T*>(corner.data), m.row, m.column, count, depth - k, part, side,
           reinterpret_cast<std::uint32_t*>(to));
    }
  }
}

/// Pairs of the numbers of two rows: `to` is a row of the first tile of a right operand's piece, whose second tile
/// follows.
template <class T>
HWY_INLINE void pair_rows(const T* row, const T* below, TilePart part, std::uint32_t* to) {
  for (std::size_t line = 0; line < kPanelLines; line += kLanes)
    hn::StoreU(pair_up(bits(row + line, kLanes, part), bits(below + line, kLanes, part)), Pairs(),
               to + line / kTileLines * (kTileWords / 2) + line % kTileLines);
}
#if HWY_TARGET <= HWY_AVX3
HWY_INLINE void pair_rows(const c10::BFloat16* row, const c10::BFloat16* below, TilePart, std::uint32_t* to) {
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
  _mm512_storeu_si512(to + kTileWords / 2, _mm512_permutex2var_epi16(a, _mm512_load_si512(kOrder.at[1]), b));
}
#endif

/// One piece of `panels` whole panels of a matrix whose lines lie side by side, `row`: from its first row of depth.
/// Rows are read from end to end: whole lines of the caches, each once.
template <class T>
void right_piece(const T* row, std::ptrdiff_t stride, std::size_t panels, TilePart part, std::uint16_t* to,
                 std::size_t panel_words) {
  const std::ptrdiff_t piece = static_cast<std::ptrdiff_t>(kPieceDepth) * stride;  // the next one is asked for
  for (std::size_t pair = 0; pair < kTilePairs; ++pair, row += 2 * stride)
    for (std::size_t p = 0; p < panels; ++p) {
      __builtin_prefetch(row + p * kPanelLines + piece, 0, 3);
      __builtin_prefetch(row + p * kPanelLines + piece + stride, 0, 3);
      pair_rows(row + p * kPanelLines, row + stride + p * kPanelLines, part,
                reinterpret_cast<std::uint32_t*>(to + p * panel_words) + pair * kTilePairs);
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
template <class T>
void whole_panels(const Matrix& m, std::size_t panels, std::size_t pieces, TilePart part, TileSide side,
                  std::uint16_t* to, std::size_t panel_words) {
  const std::size_t at_once = side == TileSide::Right ? kRightPanels : kLeftPanels;
  for (std::size_t first = 0; first < panels; first += at_once) {
    const std::size_t count = std::min(at_once, panels - first);
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      const T* const row = static_cast<const T*>(m.at(first * kPanelLines, piece * kPieceDepth).data);
      std::uint16_t* const at = to + first * panel_words + piece * kPieceWords;
      if (side == TileSide::Right) {
        right_piece(row, m.column, count, part, at, panel_words);
        continue;
      }
      alignas(64) std::uint16_t turned[kLeftPanels * kPieceWords];
      right_piece(row, m.column, count, part, turned, kPieceWords);
      for (std::size_t p = 0; p < count; ++p)
        for (std::size_t tile_words = 0; tile_words < kPieceWords; tile_words += kTileWords)
          turn_tile(turned + p * kPieceWords + tile_words, at + p * panel_words + tile_words);
    }
  }
}

template <class T>
void panels_of_type(const Matrix& m, std::size_t lines, std::size_t depth, TilePart part, TileSide side,
                    std::uint16_t* to, std::size_t panel_words) {
  const bool side_by_side = m.row == 1 && m.column != 1;
  const std::size_t whole = side_by_side ? lines / kPanelLines : 0, pieces = depth / kPieceDepth;
  whole_panels<T>(m, whole, pieces, part, side, to, panel_words);
  for (std::size_t line = 0; line < lines; line += kPanelLines)
    panel<T>(m.at(line, 0), std::min(kPanelLines, lines - line), depth,
             line < whole * kPanelLines ? pieces * kPieceDepth : 0, part, side, to + line / kPanelLines * panel_words);
}

void pack(const Matrix& m, std::size_t lines, std::size_t depth, TilePart part, TileSide side, std::uint16_t* to,
          std::size_t panel_words) {
  if (m.type == ElementType::Float32) {
    panels_of_type<float>(m, lines, depth, part, side, to, panel_words);
  } else {
    panels_of_type<c10::BFloat16>(m, lines, depth, part, side, to, panel_words);
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(pack);

void pack_panels(const Matrix& matrix, std::size_t lines, std::size_t depth, TilePart part, TileSide side,
                 std::uint16_t* to, std::size_t panel_words) {
  HWY_DYNAMIC_DISPATCH(pack)(matrix, lines, depth, part, side, to, panel_words);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
