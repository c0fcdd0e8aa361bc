// What both passes of attention on tiles share.
#if defined(MEGATRON_KERNELS_CPU_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_ATTENTION_TILES_INL_H_
#undef MEGATRON_KERNELS_CPU_ATTENTION_TILES_INL_H_
#else
#define MEGATRON_KERNELS_CPU_ATTENTION_TILES_INL_H_
#endif

#include <initializer_list>
#include <type_traits>

#include "megatron/kernels/cpu/attention/attention-inl.h"
#include "megatron/kernels/cpu/attention/attention_tiles.h"
#include "megatron/kernels/cpu/products/tile_multiply.h"
#include "megatron/kernels/cpu/products/tile_product.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {

using Words = std::uint16_t;
constexpr std::size_t kKeyPieces = kKeyBlock / kPieceDepth;  // of a block of keys

/// How many blocks of 32 the features and the keys fill.
struct TileCounts {
  std::size_t features, keys;
  explicit TileCounts(const AttentionProblem& p) : TileCounts(p, p.keys) {}
  TileCounts(const AttentionProblem& p, std::size_t part) : features(panels_of(p.size)), keys(panels_of(part)) {}
  /// Of a row of sums over all features; no power of two.
  std::size_t stride() const { return features * kPanelLines + 16; }
};

/// Rows of bf16 numbers [32, kWordStride] that are a left operand as they lie, of as many keys as a block of scores.
/// Their stride is an odd number of lines of the caches.
constexpr std::size_t kWordStride = kKeyBlock + 32;
inline LeftPanel rows_from(const Words* row) {
  constexpr std::ptrdiff_t kStride = kWordStride * sizeof(Words), kPieceBytes = kPieceDepth * sizeof(Words);
  return {reinterpret_cast<const std::byte*>(row), kStride, kTileRows16 * kStride, kPieceBytes};
}

/// A row of them as FloatRow: rounds to nearest, by the instruction where the machine has what Tiles stands for.
template <class Tiles>
struct WordRow {
  using RowExp = ExpTo16Bits;
  Words* at;
  HWY_INLINE void put(std::size_t j, F first, F second) const {
#if HWY_TARGET <= HWY_AVX3
    if constexpr (!std::is_same_v<Tiles, EmulatedTiles>) {
      __m512i pair;  // of AVX512_BF16, which these kernels are not compiled for
      asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(pair) : "v"(first.raw), "v"(second.raw));
      _mm512_storeu_si512(at + j, pair);
      return;
    }
#endif
    hn::StoreU(to_bf16(first), Halves(), at + j);
    hn::StoreU(to_bf16(second), Halves(), at + j + kLanes);
  }
};

/// Positions from `p` on of a head as a matrix [positions, features], or its transpose.
template <class Byte>
Matrix positions_of(const HeadsOf<Byte>& x, const Head& head, std::size_t p) {
  return {x.at(p, head), ElementType::BFloat16, x.position / static_cast<std::ptrdiff_t>(sizeof(Words)), 1};
}

/// Calls pack(position, count) for each 32 of `range`, which begins at a panel, having asked for the rows of the next
/// 32 in all of `tensors`: they lie too far apart for the processor to see what comes next.
template <class Pack>
void for_panels(const AttentionProblem& p, std::initializer_list<const Heads*> tensors, const Head& head,
                KeyRange range, const Pack& pack) {
  for (std::size_t k = range.begin; k < range.end; k += kPanelLines) {
    const std::size_t next = std::min(k + kPanelLines, range.end), end = std::min(next + kPanelLines, range.end);
    for (const Heads* x : tensors)
      for (std::size_t i = next; i < end; ++i) ask_for_row<Words>(x->at(i, head), p.size);
    pack(k, next - k);
  }
}

/// `count` positions from k on, at most 32, a multiple of which is k: as one panel over the features, the `number`-th
/// of its operand, or as one piece of each panel of features, of which the operand has `pieces`.
inline void pack_over_features(const AttentionProblem& p, const Heads& x, const Head& head, std::size_t k,
                               std::size_t count, TileSide side, Words* to, std::size_t number) {
  static_assert(kLeastBlock % kPanelLines == 0 && kLeastBlock % kPieceDepth == 0, "they lie together");
  const std::size_t panel = TileCounts(p).features * kPieceWords;
  pack_panels(positions_of(x, head, k), count, p.size, side, to + number * panel, panel);
}
inline void pack_over_positions(const AttentionProblem& p, const Heads& x, const Head& head, std::size_t k,
                                std::size_t count, TileSide side, Words* to, std::size_t number, std::size_t pieces) {
  pack_panels(positions_of(x, head, k).transposed(), p.size, count, side, to + number * kPieceWords,
              pieces * kPieceWords);
}

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
