#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/attention/attention_tiles_forward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include "megatron/kernels/cpu/attention/attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

/// The scratch of one thread, cut up.
struct ForwardSpace {
  float *scores, *sum;
  Words *queries, *weights;

  ForwardSpace(const TileCounts& count, float* at)
      : scores(at),
        sum(scores + kPanelLines * kScoreStride),
        queries(reinterpret_cast<Words*>(sum + kPanelLines * count.stride())),
        weights(queries + count.features * kPieceWords) {}  // rows of kWordStride
};

/// At most 32 queries from q0 on.
template <class Tiles>
void forward_rows(const AttentionProblem& p, Tiles& tiles, const Head& head, std::size_t q0, std::size_t rows,
                  const Words* packed, const MutableHeads& out, float* logsumexp_bns, const ForwardSpace& space) {
  const TileCounts count(p);
  const std::size_t stride = count.stride(), panel = count.features * kPieceWords;
  const Words* const values = packed + count.keys * panel;
  Running running[kPanelLines];
  pack_panels(positions_of(p.q, head, q0), rows, p.size, TileSide::Left, space.queries, 0);
  const KeyRange all = visible_of_block(p, head.b, q0, q0 + rows, kPanelLines);
  if (all.begin >= all.end) std::fill(space.sum, space.sum + rows * stride, 0.0f);
  RowsAhead next{q0 + rows, std::min(q0 + rows + kPanelLines, p.queries)}, written{q0, q0 + rows};
  for (std::size_t k0 = all.begin; k0 < all.end; k0 += kKeyBlock) {
    next.ask(kPanelLines / 4, p, head, p.q);
    written.ask(kPanelLines / 4, p, head, out);
    const std::size_t keys = std::min(kKeyBlock, all.end - k0), first = k0 / kPieceDepth;
    for (std::size_t j = 0; j < panels_of(keys); ++j) {
      multiply_tiles(tiles, packed_panel(space.queries), packed + (first + j) * panel, count.features,
                     space.scores + j * kPanelLines, kScoreStride, false);
    }
    softmax_rows(p, head, q0, rows, k0, keys, k0 == all.begin, space.scores, running, space.sum, stride,
                 [&](std::size_t i) { return WordRow<Tiles>{space.weights + i * kWordStride}; });
    for (std::size_t f = 0; f < count.features; ++f) {
      multiply_tiles(tiles, rows_from(space.weights), values + (f * count.keys + first) * kPieceWords, pieces_of(keys),
                     space.sum + f * kPanelLines, stride, k0 != all.begin);
    }
  }
  finish_rows(p, head, q0, rows, running, space.sum, stride, out, logsumexp_bns);
}

template <class Tiles>
void forward_on(const AttentionProblem& p, const Head& head, std::size_t block, const Words* packed,
                const MutableHeads& out, float* logsumexp_bns, float* scratch) {
  const ForwardSpace space(TileCounts(p), scratch);
  Tiles tiles;
  const std::size_t q1 = std::min((block + 1) * kQueryBlock, p.queries);
  for (std::size_t i = block * kQueryBlock; i < q1; ++i) ask_for_row<Words>(p.q.at(i, head), p.size);
  for (std::size_t q0 = block * kQueryBlock; q0 < q1; q0 += kPanelLines)
    forward_rows(p, tiles, head, q0, std::min(kPanelLines, q1 - q0), packed, out, logsumexp_bns, space);
}

void forward(const AttentionProblem& p, TileUnit unit, const Head& head, std::size_t block, const Words* packed,
             const MutableHeads& out, float* logsumexp_bns, float* scratch) {
#if defined(__x86_64__)
  if (unit == TileUnit::Dots) return forward_on<DotTiles>(p, head, block, packed, out, logsumexp_bns, scratch);
  if (unit == TileUnit::Hardware) return forward_on<HardwareTiles>(p, head, block, packed, out, logsumexp_bns, scratch);
#endif
  if (unit == TileUnit::Emulated) forward_on<EmulatedTiles>(p, head, block, packed, out, logsumexp_bns, scratch);
}

static_assert(kScoreStride == 256 + 16 && kWordStride == 256 + 32, "tile_forward_scratch_floats() counts so many");

void pack(const AttentionProblem& p, const Head& head, Words* packed) {
  const TileCounts count(p);
  Words* const values = packed + count.keys * count.features * kPieceWords;
  for_panels(p, {&p.k, &p.v}, head, {0, p.keys}, [&](std::size_t k, std::size_t keys) {
    pack_over_features(p, p.k, head, k, keys, TileSide::Right, packed, k / kPanelLines);
    pack_over_positions(p, p.v, head, k, keys, TileSide::Right, values, k / kPieceDepth, count.keys);
  });
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(pack);
HWY_EXPORT(forward);

std::size_t tile_packed_words(const AttentionProblem& p) {
  return 2 * panels_of(p.keys) * panels_of(p.size) * kPieceWords;
}

std::size_t tile_forward_scratch_floats(const AttentionProblem& p) {
  const std::size_t features = panels_of(p.size);
  const std::size_t words = features * kPieceWords + kPanelLines * (256 + 32);
  return kPanelLines * (256 + 16 + features * kPanelLines + 16) + words / 2;
}

void tile_pack_keys_and_values(const AttentionProblem& problem, const Head& head, std::uint16_t* packed) {
  HWY_DYNAMIC_DISPATCH(pack)(problem, head, packed);
}

void tile_attention_forward(const AttentionProblem& problem, TileUnit unit, const Head& head, std::size_t block,
                            const std::uint16_t* packed, const MutableHeads& out, float* logsumexp_bns,
                            float* scratch) {
  HWY_DYNAMIC_DISPATCH(forward)(problem, unit, head, block, packed, out, logsumexp_bns, scratch);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
