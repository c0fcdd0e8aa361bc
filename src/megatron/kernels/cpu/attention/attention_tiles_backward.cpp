#include "megatron/kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "megatron/kernels/cpu/attention/attention_tiles_backward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first
#include <hwy/highway.h>

#include <cstring>

#include "megatron/kernels/cpu/attention/attention_tiles-inl.h"

// Batches of 256 queries against blocks of 256 keys. Of each such square the probabilities P and the gradients of the
// scores dS are kept as right operands, so that dK^T = Q^T dS and dV^T = dO^T P sum over the whole batch, and neither
// of the large matrices is ever transposed.
HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr std::size_t kBatch = kTileBatch, kBatchBlocks = kBatch / kPanelLines;
constexpr std::size_t kRowsAtOnce = 8;  // that are asked for with 32 queries and 256 keys
static_assert(kBatchBlocks == kKeyPieces, "the squares below have as many rows of panels as columns");

/// What is kept of a square, as panels [block of 32 keys][block of 32 queries].
struct Square {
  Words* panels;
  Words* at(std::size_t keys, std::size_t queries) const {
    return panels + (keys * kBatchBlocks + queries) * kPieceWords;
  }
};

/// The scratch of one thread, cut up.
struct Space {
  float *dk_t, *dv_t;                          // of a part of the keys: blocks [32 features, 32 keys]
  float *scores, *dscores, *rows;              // of 32 queries or keys
  float* dq;                                   // of a batch that sees no key of another part
  Words *keys, *values, *keys_over_keys;       // of the part
  Words *queries, *dout, *queries_t, *dout_t;  // of the batch
  Words *weights, *dweights;                   // of 32 queries: rows of probabilities and of gradients of scores
  Square probabilities, gradients;
  float* end;

  Space(const TileCounts& count, float* at) {
    const auto take = [&at](std::size_t floats) {
      float* part = at;
      at += round_up(floats, 16);
      return part;
    };
    const auto take_pieces = [&](std::size_t pieces) {
      return reinterpret_cast<Words*>(take(pieces * kPieceWords / 2));
    };
    for (float** part : {&dk_t, &dv_t}) *part = take(count.features * count.keys * kSumFloats);
    for (float** part : {&scores, &dscores}) *part = take(kPanelLines * kScoreStride);
    rows = take(kLanes * count.stride());
    dq = take(kBatch * count.stride());
    for (Words** part : {&keys, &values, &keys_over_keys}) *part = take_pieces(count.features * count.keys);
    for (Words** part : {&queries, &dout, &queries_t, &dout_t}) *part = take_pieces(count.features * kBatchBlocks);
    for (Words** part : {&weights, &dweights}) *part = reinterpret_cast<Words*>(take(kPanelLines * kWordStride / 2));
    for (Square* part : {&probabilities, &gradients}) part->panels = take_pieces(kBatchBlocks * kKeyPieces);
    end = at;
  }
};

/// What is asked for of a head, `member` of its piece, and a part of the keys.
struct Pass {
  const AttentionProblem& p;
  Head head;
  std::size_t member;
  KeyRange part;
  const Heads& dout;
  const float *logsumexp, *delta;  // of the head
  const QueryGradients& dq;
  const MutableHeads& to;  // where dq goes of batches that see no key of another part
  TileCounts count;        // of the part
  const Space& space;
};

/// Queries [begin, begin + rows), kBatch or fewer: which keys each sees, and the gradients of theirs.
struct Batch {
  std::size_t begin, rows;
  KeyRange seen[kBatch];
  float* dq;
  bool summed[kBatchBlocks];  // whether dq holds a sum already, of each block
  RowsAhead next, written;    // queries of the next batch; rows of dq that are written when this one is done, or none

  KeyRange of_rows(std::size_t first, std::size_t last, std::size_t keys) const {
    return union_of_rows(first, last, keys, [this](std::size_t i) { return seen[i]; });
  }
};

/// Packs queries [q0, q0 + rows) of both sides.
void read_batch(const Pass& pass, std::size_t q0, std::size_t rows) {
  const AttentionProblem& p = pass.p;
  const Space& w = pass.space;
  for_panels(p, {&p.q, &pass.dout}, pass.head, {q0, q0 + rows}, [&](std::size_t q, std::size_t count) {
    const std::size_t i = (q - q0) / kPanelLines;
    pack_over_features(p, p.q, pass.head, q, count, TileSide::Left, w.queries, i);
    pack_over_features(p, pass.dout, pass.head, q, count, TileSide::Left, w.dout, i);
    pack_over_positions(p, p.q, pass.head, q, count, TileSide::Left, w.queries_t, i, kBatchBlocks);
    pack_over_positions(p, pass.dout, pass.head, q, count, TileSide::Left, w.dout_t, i, kBatchBlocks);
  });
}

/// Blocks [begin, end) of 32.
struct Blocks {
  std::size_t begin, end;
};

/// Block `i` of the batch's queries against keys [k0, k0 + count): one column of the square, and its part of dq.
/// Returns the blocks of keys that a query of it sees.
template <class Tiles>
Blocks queries_gradient(const Pass& pass, Tiles& tiles, Batch& batch, std::size_t i, std::size_t k0,
                        std::size_t count) {
  const AttentionProblem& p = pass.p;
  const Space& w = pass.space;
  const std::size_t row0 = i * kPanelLines, rows = std::min(kPanelLines, batch.rows - row0), q0 = batch.begin + row0;
  const std::size_t panel = pass.count.features * kPieceWords, first = (k0 - pass.part.begin) / kPieceDepth;
  batch.next.ask(kRowsAtOnce, p, pass.head, p.q, pass.dout);
  batch.written.ask(kRowsAtOnce, p, pass.head, pass.to);
  const KeyRange seen = within(batch.of_rows(row0, row0 + rows, p.keys), k0, count);
  if (seen.begin >= seen.end) return {0, 0};
  const Blocks blocks{seen.begin / kPanelLines, panels_of(seen.end)};
  for (std::size_t j = blocks.begin; j < blocks.end; ++j) {
    multiply_tiles(tiles, packed_panel(w.queries + i * panel), w.keys + (first + j) * panel, pass.count.features,
                   w.scores + j * kPanelLines, kScoreStride, false);
    multiply_tiles(tiles, packed_panel(w.dout + i * panel), w.values + (first + j) * panel, pass.count.features,
                   w.dscores + j * kPanelLines, kScoreStride, false);
  }
  const std::size_t begin = blocks.begin * kPanelLines, end = std::min(blocks.end * kPanelLines, count);
  DropoutRow dropout{p, {}};
  for (std::size_t r = 0; r < rows; ++r) {
    const KeyRange row = within(batch.seen[row0 + r], k0 + begin, end - begin);
    if (p.sample_ids != nullptr) dropout.draw(pass.head, q0 + r, k0 + begin, row);
    const GradientRow<WordRow<Tiles>> of{pass.logsumexp[q0 + r],
                                         pass.delta[q0 + r],
                                         p.sample_ids != nullptr ? &dropout : nullptr,
                                         {w.weights + r * kWordStride + begin},
                                         {w.dweights + r * kWordStride + begin}};
    row_gradient(p, pass.head, q0 + r, k0 + begin, end - begin, row, of, w.scores + r * kScoreStride + begin,
                 w.dscores + r * kScoreStride + begin);
  }
  for (const auto& [from, square] : {std::pair(w.weights, w.probabilities), std::pair(w.dweights, w.gradients)}) {
    std::fill(from + rows * kWordStride, from + kPanelLines * kWordStride, Words{0});
    const Matrix transposed{from + begin, ElementType::BFloat16, 1, kWordStride};
    pack_panels(transposed, (blocks.end - blocks.begin) * kPanelLines, kPanelLines, TileSide::Right,
                square.at(blocks.begin, i), kBatchBlocks * kPieceWords);
  }
  float* const dq = batch.dq + row0 * pass.dq.stride;
  for (std::size_t f = 0; f < pass.count.features; ++f) {
    multiply_tiles(tiles, rows_from(w.dweights + begin),
                   w.keys_over_keys + (f * pass.count.keys + first + blocks.begin) * kPieceWords,
                   blocks.end - blocks.begin, dq + f * kPanelLines, pass.dq.stride, batch.summed[i]);
  }
  batch.summed[i] = true;
  return blocks;
}

/// A batch against keys [k0, k0 + count): adds to dq, dk_t and dv_t.
template <class Tiles>
void square_gradient(const Pass& pass, Tiles& tiles, Batch& batch, std::size_t k0, std::size_t count) {
  const Space& w = pass.space;
  Blocks seen_by[kKeyPieces];  // of queries, for each block of keys
  Blocks seen[kBatchBlocks];   // of keys, by each block of queries
  std::fill(seen_by, seen_by + kKeyPieces, Blocks{kBatchBlocks, 0});
  for (std::size_t i = 0; i < panels_of(batch.rows); ++i) {
    seen[i] = queries_gradient(pass, tiles, batch, i, k0, count);
    for (std::size_t j = seen[i].begin; j < seen[i].end; ++j) seen_by[j] = {std::min(seen_by[j].begin, i), i + 1};
  }
  for (std::size_t j = 0; j < panels_of(count); ++j) {
    const auto [begin, end] = seen_by[j];
    if (begin >= end) continue;
    for (std::size_t i = begin; i < end; ++i) {  // documents may leave holes
      if (seen[i].begin <= j && j < seen[i].end) continue;
      for (const Square& square : {w.probabilities, w.gradients})
        std::fill(square.at(j, i), square.at(j, i) + kPieceWords, Words{0});
    }
    for (std::size_t f = 0; f < pass.count.features; ++f) {
      const std::size_t left = (f * kBatchBlocks + begin) * kPieceWords;
      const std::size_t block = (k0 - pass.part.begin) / kPanelLines + j;
      const std::size_t sum = (block * pass.count.features + f) * kSumFloats;
      multiply_tiles(tiles, packed_panel(w.dout_t + left), w.probabilities.at(j, begin), end - begin, w.dv_t + sum,
                     kPanelLines, true);
      multiply_tiles(tiles, packed_panel(w.queries_t + left), w.gradients.at(j, begin), end - begin, w.dk_t + sum,
                     kPanelLines, true);
    }
  }
}

/// The transpose of a part's blocks of sums, as float32 rows to `shared`, or, where that is null, to `to`.
void write_transposed(const AttentionProblem& p, const Head& group, KeyRange part, const Space& w, const float* sums,
                      float* shared, const MutableHeads& to) {
  const std::size_t stride = round_up(p.size, 16), row = TileCounts(p).stride();
  const std::size_t block_floats = TileCounts(p).features * kSumFloats;
  F block[kLanes];
  for (std::size_t k = part.begin; k < part.end; k += kLanes) {
    const std::size_t keys = std::min(kLanes, part.end - k), at = k - part.begin;
    const float* const from = sums + at / kPanelLines * block_floats + at % kPanelLines;
    for (std::size_t i = k + kLanes; shared == nullptr && i < std::min(k + 2 * kLanes, part.end); ++i)
      ask_for_row<Words>(to.at(i, group), p.size);
    for (std::size_t c = 0; c < stride; c += kLanes) {
      for (std::size_t i = 0; i < kLanes; ++i) block[i] = hn::LoadU(Floats(), from + (c + i) * kPanelLines);
      transpose(block);
      for (std::size_t i = 0; i < kLanes; ++i) hn::StoreU(block[i], Floats(), w.rows + i * row + c);
    }
    if (shared == nullptr) write_rows(p.type, w.rows, row, keys, p.size, to.at(k, group), to.position);
    for (std::size_t i = 0; shared != nullptr && i < keys; ++i)
      std::memcpy(shared + (k + i) * stride, w.rows + i * row, stride * sizeof(float));
  }
}

/// What the head and the keys of the part give each other.
template <class Tiles>
void part_gradient(const Pass& pass, Tiles& tiles) {
  const AttentionProblem& p = pass.p;
  const std::size_t stride = pass.dq.stride;
  Batch batch;
  for (std::size_t q0 = 0; q0 < p.queries; q0 += kBatch) {
    batch.begin = q0;
    batch.rows = std::min(kBatch, p.queries - q0);
    for (std::size_t i = 0; i < batch.rows; ++i) batch.seen[i] = visible(p, pass.head.b, q0 + i);
    const KeyRange all = batch.of_rows(0, batch.rows, p.keys);
    const std::size_t begin = std::max(all.begin / kPanelLines * kPanelLines, pass.part.begin);
    const std::size_t end = std::min(all.end, pass.part.end);
    if (begin >= end) continue;
    std::uint8_t& touched = pass.dq.touched_at(pass.member, q0 / kBatch);
    const bool complete = pass.part.begin <= all.begin && all.end <= pass.part.end;
    batch.dq = complete ? pass.space.dq : pass.dq.rows(pass.member, q0 / kBatch);
    std::fill(batch.summed, batch.summed + kBatchBlocks, touched != QueryGradients::kNothing);
    touched = complete ? QueryGradients::kWritten : QueryGradients::kSummed;
    batch.next = {q0 + batch.rows, std::min(q0 + batch.rows + kBatch, p.queries)};
    batch.written = {q0, complete ? q0 + batch.rows : q0};
    read_batch(pass, q0, batch.rows);
    for (std::size_t k0 = begin; k0 < end; k0 += kKeyBlock)
      square_gradient(pass, tiles, batch, k0, std::min(kKeyBlock, end - k0));
    for (std::size_t i = 0; i < panels_of(batch.rows); ++i)
      if (!batch.summed[i]) std::fill_n(batch.dq + i * kPanelLines * stride, kPanelLines * stride, 0.0f);
    if (complete) write_rows(p.type, batch.dq, stride, batch.rows, p.size, pass.to.at(q0, pass.head), pass.to.position);
  }
}

template <class Tiles>
void backward_on(const AttentionGradient& asked, const BackwardPiece& piece, const QueryGradients& dq, float* shared,
                 float* scratch) {
  const AttentionProblem& p = asked.p;
  const Head& group = piece.group;
  Tiles tiles;
  for (std::size_t number = 0; number < asked.pieces.parts(p); ++number) {
    if (asked.pieces.lane_of(number) != piece.lane) continue;
    const std::size_t k0 = number * asked.pieces.part;
    const KeyRange part{k0, std::min(k0 + asked.pieces.part, p.keys)};
    const TileCounts count(p, part.end - part.begin);
    const Space w(count, scratch);
    for_panels(p, {&p.k, &p.v}, group, part, [&](std::size_t k, std::size_t keys) {
      const std::size_t i = (k - k0) / kPanelLines;
      pack_over_features(p, p.k, group, k, keys, TileSide::Right, w.keys, i);
      pack_over_features(p, p.v, group, k, keys, TileSide::Right, w.values, i);
      pack_over_positions(p, p.k, group, k, keys, TileSide::Right, w.keys_over_keys, i, count.keys);
    });
    for (float* sums : {w.dk_t, w.dv_t}) std::fill_n(sums, count.features * count.keys * kSumFloats, 0.0f);
    for (std::size_t member = 0; member < piece.members; ++member) {
      const Head head{group.b, group.group, piece.first_member + member};
      const std::size_t row = p.row_of(head);
      const Pass pass{p,  head,     member, part, asked.dout, asked.logsumexp_bns + row, asked.delta_bns + row,
                      dq, asked.dq, count,  w};
      part_gradient(pass, tiles);
    }
    float* const values = shared != nullptr ? shared + p.keys * round_up(p.size, 16) : nullptr;
    write_transposed(p, group, part, w, w.dk_t, shared, asked.dk);
    write_transposed(p, group, part, w, w.dv_t, values, asked.dv);
  }
}

void backward(const AttentionGradient& asked, TileUnit unit, const BackwardPiece& piece, const QueryGradients& dq,
              float* shared, float* scratch) {
#if defined(__x86_64__)
  if (unit == TileUnit::Dots) return backward_on<DotTiles>(asked, piece, dq, shared, scratch);
  if (unit == TileUnit::Hardware) return backward_on<HardwareTiles>(asked, piece, dq, shared, scratch);
#endif
  if (unit == TileUnit::Emulated) backward_on<EmulatedTiles>(asked, piece, dq, shared, scratch);
}

std::size_t scratch_floats(const AttentionProblem& p, std::size_t part) {
  return static_cast<std::size_t>(Space(TileCounts(p, part), nullptr).end - static_cast<float*>(nullptr));
}

}  // namespace
}  // namespace megatron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {
HWY_EXPORT(backward);
HWY_EXPORT(scratch_floats);

BackwardPieces tile_attention_backward_pieces(const AttentionProblem& p) {
  // All keys in one part, as each has the queries packed once more; or lanes of whole squares.
  return backward_pieces(p, (p.keys + kTileBatch - 1) / kTileBatch * kTileBatch, kTileBatch);
}
std::size_t tile_backward_scratch_floats(const AttentionProblem& p, const BackwardPieces& pieces) {
  return HWY_DYNAMIC_DISPATCH(scratch_floats)(p, pieces.part);
}
QueryGradients tile_query_gradients(const AttentionProblem& p) {
  const std::size_t stride = panels_of(p.size) * kPanelLines + 16, blocks = (p.queries + kTileBatch - 1) / kTileBatch;
  return {nullptr, nullptr, stride, kTileBatch, blocks * kTileBatch};
}

void tile_attention_backward(const AttentionGradient& asked, TileUnit unit, const BackwardPiece& piece,
                             const QueryGradients& dq, float* shared, float* scratch) {
  HWY_DYNAMIC_DISPATCH(backward)(asked, unit, piece, dq, shared, scratch);
}

}  // namespace megatron::kernels::cpu
#endif  // HWY_ONCE
