#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/products/tile_pack.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/cache_control.h>
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
  if (depth_stride == 1) {
    for (std::size_t i = 0; i < kLanes; ++i)
      block[i] = whole_pairs_along(corner + static_cast<std::ptrdiff_t>(i) * line_stride, part);
    return;
  }
  constexpr std::ptrdiff_t kAhead = 4;  // blocks; the rows of a matrix are too far apart for the processor to guess
  for (std::size_t i = 0; i < kLanes; ++i) {
    const T* const row = corner + static_cast<std::ptrdiff_t>(2 * i) * depth_stride;
    const T* const ahead = row + kAhead * static_cast<std::ptrdiff_t>(2 * kLanes) * depth_stride;
    hwy::Prefetch(ahead);
    hwy::Prefetch(ahead + depth_stride);
    block[i] = pair_up(bits(row, kLanes, part), bits(row + depth_stride, kLanes, part));
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

template <class T>
void panel(const Matrix& m, std::size_t lines, std::size_t depth, TilePart part, TileSide side, std::uint16_t* to) {
  for (std::size_t k = 0; k < depth; k += kPieceDepth) {
    for (std::size_t line = 0; line < kPanelLines; line += kTileLines, to += kTileWords) {
      const std::size_t count = lines > line ? lines - line : 0;
      const Matrix corner = count > 0 ? m.at(line, k) : m;
      tile(static_cast<const T*>(corner.data), m.row, m.column, count, depth - k, part, side,
           reinterpret_cast<std::uint32_t*>(to));
    }
  }
}

void pack(const Matrix& m, std::size_t lines, std::size_t depth, TilePart part, TileSide side, std::uint16_t* to) {
  if (m.type == ElementType::Float32) {
    panel<float>(m, lines, depth, part, side, to);
  } else {
    panel<c10::BFloat16>(m, lines, depth, part, side, to);
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(pack);

void pack_panel(const Matrix& matrix, std::size_t lines, std::size_t depth, TilePart part, TileSide side,
                std::uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(pack)(matrix, lines, depth, part, side, to);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
