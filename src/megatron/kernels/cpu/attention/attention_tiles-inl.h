// What both passes of attention on tiles share.
#if defined(MEGATRON_KERNELS_CPU_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGATRON_KERNELS_CPU_ATTENTION_TILES_INL_H_
#undef MEGATRON_KERNELS_CPU_ATTENTION_TILES_INL_H_
#else
#define MEGATRON_KERNELS_CPU_ATTENTION_TILES_INL_H_
#endif

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

/// sum [32][32], rows `stride` floats apart, = or += the product of two packed panels, `pieces` pieces deep.
template <class Tiles>
HWY_INLINE void tile_block(Tiles& tiles, const Words* left, const Words* right, std::size_t pieces, float* sum,
                           std::size_t stride, bool accumulate) {
  constexpr std::ptrdiff_t kTileBytes = kTileWords * sizeof(Words), kPieceBytes = kPieceWords * sizeof(Words);
  const LeftPanel packed{reinterpret_cast<const std::byte*>(left), kTileRowBytes, kTileBytes, kPieceBytes};
  multiply_tiles(tiles, packed, right, pieces, sum, stride, accumulate);
}

/// Positions from `p` on of a head as a matrix [positions, features], or its transpose.
template <class Byte>
Matrix positions_of(const HeadsOf<Byte>& x, const Head& head, std::size_t p) {
  return {x.at(p, head), ElementType::BFloat16, x.position / static_cast<std::ptrdiff_t>(sizeof(Words)), 1};
}
/// A block of scores as a matrix [queries, keys].
inline Matrix scores_of(const float* scores) {
  return {scores, ElementType::Float32, static_cast<std::ptrdiff_t>(kScoreStride), 1};
}

/// Keys or values [keys, features] of `range`, which begins at a panel, for products that sum over features, and for
/// those that sum over keys.
inline void pack_over_features(const AttentionProblem& p, const Heads& x, const Head& head, KeyRange range, Words* to) {
  static_assert(kLeastBlock % kPanelLines == 0 && kLeastBlock % kPieceDepth == 0);
  const std::size_t panel = TileCounts(p).features * kPieceWords;
  for (std::size_t k = range.begin, count = 0; k < range.end; k += count) {
    count = x.together(k, range.end - k);
    pack_panels(positions_of(x, head, k), count, p.size, TilePart::High, TileSide::Right,
                to + (k - range.begin) / kPanelLines * panel, panel);
  }
}
inline void pack_over_keys(const AttentionProblem& p, const Heads& x, const Head& head, KeyRange range, Words* to) {
  const std::size_t panel = panels_of(range.end - range.begin) * kPieceWords;
  for (std::size_t k = range.begin, count = 0; k < range.end; k += count) {
    count = x.together(k, range.end - k);
    pack_panels(positions_of(x, head, k).transposed(), p.size, count, TilePart::High, TileSide::Right,
                to + (k - range.begin) / kPieceDepth * kPieceWords, panel);
  }
}

}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
