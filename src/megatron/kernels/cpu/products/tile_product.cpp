#include "megatron/kernels/cpu/products/tile_product.h"

#include <algorithm>
#include <type_traits>

#include "megatron/kernels/cpu/products/tile_multiply.h"

namespace megatron::kernels::cpu {
namespace {

constexpr std::size_t kDepthPieces = 8;  // of a row panel: 16 KB, which stays in the first cache
// Of operands that are split: a piece of a chunk, all parts, takes 6 KB.
constexpr std::size_t kSplitPieces = 4;
constexpr std::size_t kChunkParts = 6;          // as many times as many of column panels stay in the second
constexpr std::size_t kGroupBytes = 800 << 10;  // of column panels, in that chunk
// Where b is packed before and the depth is one chunk: less, since the next group comes into the second cache
// meanwhile.
constexpr std::size_t kPackedGroupBytes = 500 << 10;
constexpr std::size_t kMostPanels = 64, kMostDeepPanels = 16;  // of a group
constexpr std::size_t kGap = 16;  // floats, so that the rows of a tile do not share cache sets

/// How a product is cut. Columns are taken a group of panels at a time, and of these a chunk of the depth: so many stay
/// in the second cache while the rows go by, 32 at a time, of which the pieces of a part stay in the first.
struct Cut {
  bool split;
  std::size_t group, halves, pieces, parts, chunks, group_bytes, chunk_pieces, panels, most_panels;

  explicit Cut(const TileProduct& p)
      : split(p.parts > 1),
        group(p.split_panels),
        halves(p.epilogue.two_halves() ? 2 : 1),
        pieces(pieces_of(p.depth)),
        parts(std::max<std::size_t>(over(pieces, depth_pieces()), 1)),
        chunks(over(parts, split ? 1 : kChunkParts)),
        group_bytes(p.packed_b != nullptr && chunks == 1 ? kPackedGroupBytes : kGroupBytes),
        chunk_pieces(over(pieces * over(parts, chunks), parts)),
        panels(panels_of(p.columns)),
        most_panels(panels_at_once() / halves) {}

  /// Panels of a group.
  std::size_t panels_at_once() const {
    if (split) return group;
    return std::min(group_bytes / (std::max<std::size_t>(chunk_pieces, 1) * kPieceWords * sizeof(std::uint16_t)),
                    chunks > 1 ? kMostDeepPanels : kMostPanels);
  }
  /// Pieces of depth of a part: those of a row panel stay in the first cache.
  std::size_t depth_pieces() const { return split ? kSplitPieces : kDepthPieces; }
  static std::size_t over(std::size_t size, std::size_t part) { return (size + part - 1) / part; }
  std::size_t pieces_before(std::size_t part) const { return pieces * part / parts; }
  std::size_t part_before(std::size_t chunk) const { return parts * chunk / chunks; }
  /// The most panels that a group has.
  std::size_t group_panels() const { return std::min(most_panels, panels) * halves; }
  /// Whether the sums of all rows are kept from chunk to chunk as rows.
  bool keeps_rows() const { return chunks > 1 && !split; }
  /// Floats of rows of sums: of all rows, or of two panels of them, one that is computed and one that is settled.
  std::size_t row_sums(std::size_t rows) const {
    const std::size_t kept = keeps_rows() ? panels_of(rows) : std::min<std::size_t>(panels_of(rows), 2);
    return kept * kPanelLines * (group_panels() * kPanelLines + kGap);
  }
  /// Floats of blocks of sums, which those of split operands are until their last chunk.
  std::size_t block_sums(std::size_t rows) const {
    return split && chunks > 1 ? panels_of(rows) * group_panels() * kSumFloats : 0;
  }
};

/// One call of tile_product.
template <class Tiles>
class Worker {
 public:
  Worker(const TileProduct& product, std::byte* scratch)
      : p_(product),
        cut_(product),
        left_(reinterpret_cast<std::uint16_t*>(scratch)),
        right_(left_ + left_words(product)),
        blocks_(reinterpret_cast<float*>(right_ + right_words(product))),
        sums_(blocks_ + cut_.block_sums(product.rows)) {}

  /// Dot products are not so much faster than those of float32 that operands would be split for them: tile_matmul()
  /// refuses it.
  static constexpr bool kSplits = !std::is_same_v<Tiles, DotTiles>;

  static std::size_t left_words(const TileProduct& p) {
    const Cut cut(p);
    if (p.packed_a != nullptr) return 0;
    // Rows at the end that fill no panel are packed whatever lies where it is read.
    return packed_words(reads_in_place(p) ? 1 : p.rows, 1) * cut.chunk_pieces;
  }
  static std::size_t right_words(const TileProduct& p) {
    const Cut cut(p);
    return p.packed_b != nullptr ? 0 : cut.group_panels() * cut.chunk_pieces * kPieceWords * p.parts;
  }
  static std::size_t bytes(const TileProduct& p) {
    return (left_words(p) + right_words(p)) * sizeof(std::uint16_t) +
           (Cut(p).block_sums(p.rows) + Cut(p).row_sums(p.rows)) * sizeof(float);
  }

  void run() {
    const std::size_t groups = Cut::over(cut_.panels, cut_.most_panels);
    for (std::size_t g = 0; g < groups; ++g) {
      begin_ = cut_.panels * g / groups, end_ = cut_.panels * (g + 1) / groups;
      for (chunk_ = 0; chunk_ < cut_.chunks; ++chunk_) {
        first_ = cut_.pieces_before(cut_.part_before(chunk_));
        count_ = cut_.pieces_before(cut_.part_before(chunk_ + 1)) - first_;
        if (g == 0 || cut_.chunks > 1) pack_left();
        if (p_.packed_b == nullptr) pack_right();
        for (std::size_t row = 0; row < p_.rows; row += kPanelLines) rows_of_chunk(row);
        settle(kPanelLines);
      }
    }
    if (streams()) flush_streams();
  }

 private:
  std::size_t group_panels() const { return (end_ - begin_) * cut_.halves; }
  /// Of b, panel number `i` of the group.
  std::size_t panel_of(std::size_t i) const {
    const std::size_t half = i / (end_ - begin_), panel = begin_ + i % (end_ - begin_);
    return half * static_cast<std::size_t>(p_.epilogue.half) / kPanelLines + panel;
  }

  // What of an operand is not there as tiles is packed for a chunk: [panel][pieces].

  void pack_left() {
    if (p_.packed_a != nullptr) return;
    const std::size_t row = reads_in_place(p_) ? p_.rows / kPanelLines * kPanelLines : 0;
    if (row < p_.rows) pack_lines(p_.a.at(row, first_ * kPieceDepth), p_.rows - row, TileSide::Left, left_, 0);
  }
  void pack_right() {
    for (std::size_t half = 0; half < cut_.halves; ++half) {
      const std::size_t line = panel_of(half * (end_ - begin_)) * kPanelLines;
      const std::size_t lines = std::min(p_.columns, end_ * kPanelLines) - begin_ * kPanelLines;
      pack_lines(p_.b.transposed().at(line, first_ * kPieceDepth), lines, TileSide::Right,
                 right_ + half * (end_ - begin_) * panel_words(), right_part());
    }
  }
  void pack_lines(const Matrix& lines, std::size_t count, TileSide side, std::uint16_t* to,
                  std::size_t part_words) const {
    const std::size_t depth = std::min(p_.depth - first_ * kPieceDepth, count_ * kPieceDepth);
    pack_panels(lines, count, depth, side, to, panel_words(), p_.parts, part_words);
  }
  std::size_t panel_words() const { return count_ * kPieceWords; }
  /// Words from a part of b to the next.
  std::size_t right_part() const { return p_.packed_b != nullptr ? p_.packed_b_part : group_panels() * panel_words(); }

  /// The panel of rows from `row` on, from piece `piece` of the chunk.
  LeftPanel left(std::size_t row, std::size_t piece) const {
    const std::size_t rows = std::min(kPanelLines, p_.rows - row);
    if (p_.packed_a != nullptr) {
      LeftPanel there = packed_panel(p_.packed_a + (row / kPanelLines * cut_.pieces + first_ + piece) * kPieceWords);
      there.rows = rows;
      return there;
    }
    if (!reads_in_place(p_) || rows < kPanelLines) {
      const std::size_t panel = reads_in_place(p_) ? 0 : row / kPanelLines;
      LeftPanel panel_at = packed_panel(left_ + panel * panel_words() + piece * kPieceWords);
      panel_at.rows = rows;
      return panel_at;
    }
    const std::ptrdiff_t stride = p_.a.row * static_cast<std::ptrdiff_t>(sizeof(std::uint16_t));
    const Matrix at = p_.a.at(row, (first_ + piece) * kPieceDepth);
    return {static_cast<const std::byte*>(at.data), stride, 16 * stride, 64, rows};
  }
  /// Panel number `i` of the group, from piece `piece` of the chunk.
  const std::uint16_t* right(std::size_t i, std::size_t piece) const {
    if (p_.packed_b == nullptr) return right_ + i * panel_words() + piece * kPieceWords;
    return p_.packed_b + (panel_of(i) * cut_.pieces + first_ + piece) * kPieceWords;
  }
  PartSteps part_steps() const {
    return {p_.parts, static_cast<std::ptrdiff_t>(p_.packed_a_part * sizeof(std::uint16_t)), right_part()};
  }

  /// 32 rows of c, or fewer: what the chunk adds to the group's columns.
  void rows_of_chunk(std::size_t row) {
    const MutableMatrix c = p_.c.at(row, begin_ * kPanelLines);
    // Where c is float32 and the tiles are whole, the sums of several chunks are taken in c itself: in the same places
    // however the product is cut, since another order of sums has other bits.
    const bool whole_tiles = p_.rows - row >= kPanelLines && p_.fills_panels;
    const bool in_c = c.type == ElementType::Float32 && !streams() && whole_tiles;
    const std::size_t held = (end_ - begin_) * kPanelLines, row_floats = cut_.halves * held + kGap;
    float* const data = in_c ? static_cast<float*>(c.data) : sums_ + rows_before(row) * row_floats;
    const Sums sums = in_c ? Sums{data, static_cast<std::size_t>(c.row), static_cast<std::size_t>(p_.epilogue.half)}
                           : Sums{data, row_floats, held};
    if (cut_.split) {
      if constexpr (kSplits) split_rows_of_chunk(row, data, sums, in_c);
    } else {
      whole_rows_of_chunk(row, data, sums, in_c);
    }
    settle(kPanelLines);
    const bool there = in_c && p_.epilogue.kind == Epilogue::Kind::None;
    if (chunk_ + 1 == cut_.chunks && !there) complete_ = {sums, row, std::min(kPanelLines, p_.rows - row)};
  }
  /// Whether the sums go to c around the caches: a weight's gradient is read much later.
  bool streams() const { return p_.c.type == ElementType::Float32 && cut_.chunks == 1 && !cut_.split; }
  /// Rows of sums that are kept before those of `row`.
  std::size_t rows_before(std::size_t row) const { return cut_.keeps_rows() ? row : row % (2 * kPanelLines); }

  /// Takes up to `count` rows of the sums that are complete to where they are wanted. With a few rows between two runs
  /// of the matrix unit the vector units do that while it computes: neither waits for the other.
  void settle(std::size_t count) {
    count = std::min(count, complete_.rows);
    if (count == 0) return;
    const std::size_t row = complete_.row, column = begin_ * kPanelLines;
    const std::size_t columns = std::min(p_.columns, end_ * kPanelLines) - column;
    const MutableMatrix c = p_.c.at(row, column);
    Sums& sums = complete_.sums;
    if (p_.epilogue.kind != Epilogue::Kind::None)
      finish(sums, count, columns, c, p_.epilogue.at(row, column, c.type));
    else if (streams())
      stream_sums(sums.data, sums.stride, count, columns, c, p_.accumulate);
    else
      write_sums(sums.data, sums.stride, count, columns, c, p_.accumulate);
    sums.data += count * sums.stride;
    complete_.row += count;
    complete_.rows -= count;
  }
  /// The rows to settle after each of `runs` of the matrix unit, so that a panel's are settled by the last of them.
  static std::size_t rows_after_each(std::size_t runs) { return Cut::over(kPanelLines, runs); }

  /// Of `sums`, which begin at `data`, those of panel number `i` of the group.
  float* panel_sums(float* data, const Sums& sums, std::size_t i) const {
    return data + i / (end_ - begin_) * sums.second + i % (end_ - begin_) * kPanelLines;
  }

  /// The panel of rows from `row` on times the chunk, of operands that are not split: added to `sums`, which begin at
  /// `data`, in c itself where `in_c`. A part of the depth at a time goes through all panels of the group's columns,
  /// while the rows' share of it, 16 KB, stays in the first cache.
  void whole_rows_of_chunk(std::size_t row, float* data, const Sums& sums, bool in_c) {
    const std::size_t end = cut_.part_before(chunk_ + 1);
    const bool reads_c = p_.accumulate || chunk_ > 0, last_chunk = chunk_ + 1 == cut_.chunks;
    const std::size_t share = rows_after_each((end - cut_.part_before(chunk_)) * group_panels());
    for (std::size_t part = cut_.part_before(chunk_); part < end; ++part) {
      const std::size_t piece = cut_.pieces_before(part) - first_, next = cut_.pieces_before(part + 1) - first_;
      const bool accumulate = part > 0 || (in_c && p_.accumulate);
      const LeftPanel a = left(row, piece);
      for (std::size_t i = 0; i < group_panels(); ++i) {
        if (part + 1 == end && in_c && reads_c)
          prefetch_sums(row + kPanelLines, panel_sums(data, sums, i), sums.stride);
        if (part + 1 == end && last_chunk && p_.epilogue.u != nullptr) ask_for_inputs(row, i);
        multiply_tiles(tiles_, a, right(i, piece), next - piece, panel_sums(data, sums, i), sums.stride, accumulate,
                       ahead(row, part, i));
        settle(share);
      }
    }
  }

  /// The sums of split operands lie in blocks until the last chunk: rows of c that are a multiple of a page apart, as
  /// many are, would push one another out of the second cache, and what is multiplied with them.
  void split_rows_of_chunk(std::size_t row, float* data, const Sums& sums, bool in_c) {
    const bool first = chunk_ == 0, last = chunk_ + 1 == cut_.chunks, begins_in_c = in_c && p_.accumulate;
    const LeftPanel a = left(row, 0);
    const std::size_t share = rows_after_each(group_panels());
    for (std::size_t i = 0; i < group_panels(); ++i) {
      const SumPlace block = SumPlace::in_block(blocks_ + (row / kPanelLines * group_panels() + i) * kSumFloats);
      const SumPlace place = SumPlace::in_matrix(panel_sums(data, sums, i), sums.stride);
      if (in_c && (last || (first && p_.accumulate)))
        prefetch_sums(row + kPanelLines, panel_sums(data, sums, i), sums.stride);
      if (last && p_.epilogue.u != nullptr) ask_for_inputs(row, i);
      multiply_split_tiles(tiles_, a, right(i, 0), part_steps(), count_,
                           first ? (begins_in_c ? place : SumPlace{}) : block, last ? place : block,
                           parts_ahead(row, i));
      settle(share);
    }
  }

  /// Prefetches to issue while a panel of rows, a part and panel number `i` are multiplied. Dot products are not faster
  /// than the processor's own.
  AheadOfBoth ahead(std::size_t row, std::size_t part, std::size_t i) const {
    if constexpr (std::is_same_v<Tiles, DotTiles>)
      return {};
    else
      return {left_ahead(row, part, i), right_ahead(row, part, i), next_right(part, i)};
  }

  /// The panel of columns that comes after panel number `i`.
  const std::uint16_t* next_right(std::size_t part, std::size_t i) const {
    if (++i < group_panels()) return right(i, cut_.pieces_before(part) - first_);
    const bool last = part + 1 == cut_.part_before(chunk_ + 1);
    return right(0, last ? 0 : cut_.pieces_before(part + 1) - first_);
  }

  /// What is read next of operands that are split and packed before: with panel number `i` of columns a share of the
  /// panel of rows that follows, and, of the next chunk's or group's panel of columns, a share with each panel of rows.
  /// Earlier than that the left operand would push the sums out of the second cache.
  AheadOfParts parts_ahead(std::size_t row, std::size_t i) const {
    const bool last = chunk_ + 1 == cut_.chunks, turns = row + kPanelLines >= p_.rows;
    const std::size_t next = last ? 0 : first_ + count_, runs = kSplitPieces * p_.parts;
    const auto run = [&](const std::uint16_t* panel, std::size_t part_words, std::size_t first, std::size_t number) {
      const std::size_t piece = first + number % kSplitPieces;
      const std::uint16_t* const at = panel + number / kSplitPieces * part_words + piece * kPieceWords;
      return piece < cut_.pieces ? reinterpret_cast<const std::byte*>(at) : nullptr;
    };
    AheadOfParts ahead;
    if (i < runs) {
      const std::size_t panel = turns ? 0 : row / kPanelLines + 1;
      ahead.runs[0] = run(p_.packed_a + panel * cut_.pieces * kPieceWords, p_.packed_a_part, turns ? next : first_, i);
    }
    if (p_.packed_b == nullptr || (last && end_ + i % (end_ - begin_) >= cut_.panels)) return ahead;
    const std::size_t panel = panel_of(i) + (last ? end_ - begin_ : 0), shares = panels_of(p_.rows);
    const std::size_t share = row / kPanelLines, begin = runs * share / shares, end = runs * (share + 1) / shares;
    for (std::size_t k = begin; k < std::min(end, begin + 2); ++k)
      ahead.runs[1 + k - begin] = run(p_.packed_b + panel * cut_.pieces * kPieceWords, p_.packed_b_part, next, k);
    return ahead;
  }

  /// A share of the left operand that comes next.
  Ahead left_ahead(std::size_t row, std::size_t part, std::size_t i) const {
    if (++part == cut_.part_before(chunk_ + 1)) part = cut_.part_before(chunk_), row += kPanelLines;
    if (row >= p_.rows) return {};
    const LeftPanel next = left(row, cut_.pieces_before(part) - first_);
    const auto line = [&](std::size_t r) {
      return next.data + static_cast<std::ptrdiff_t>(r / kTileRows16) * next.second +
             static_cast<std::ptrdiff_t>(r % kTileRows16) * next.stride;
    };
    const std::size_t begin = kPanelLines * i / group_panels(), end = kPanelLines * (i + 1) / group_panels();
    if (begin == end) return {};
    return {line(begin), line(end - 1), next.piece};
  }

  /// Of b: what panel number `i` of the next chunk or group is, or is made of; a share with each panel of rows.
  Ahead right_ahead(std::size_t row, std::size_t part, std::size_t i) const {
    const bool last = chunk_ + 1 == cut_.chunks;
    const std::size_t panel = panel_of(i) + (last ? end_ - begin_ : 0);
    const std::size_t from = last ? 0 : first_ + count_, line = panel * kPanelLines;
    const std::size_t piece = cut_.pieces_before(part) - first_;
    if ((last && end_ + i % (end_ - begin_) >= cut_.panels) || from + piece >= cut_.pieces) return {};
    const std::size_t shares = panels_of(p_.rows), share = row / kPanelLines;
    if (p_.packed_b != nullptr) {
      constexpr std::size_t kLineWords = 32, kPieceLines = kPieceWords / kLineWords;
      const std::size_t lines = (cut_.pieces_before(part + 1) - first_ - piece) * kPieceLines;
      const std::uint16_t* const pieces = p_.packed_b + (panel * cut_.pieces + from + piece) * kPieceWords;
      const auto* const at = reinterpret_cast<const std::byte*>(pieces + lines * share / shares * kLineWords);
      const std::ptrdiff_t each = shares < kPieceLines ? 2 : 1;  // lines with a piece: two suffice from 16 panels on
      return {at, at + 64 * (each - 1), 64 * each};
    }
    const std::size_t begin = kPanelLines * share / shares, end = kPanelLines * (share + 1) / shares;
    if (begin == end) return {};
    const Matrix lines = p_.b.transposed();
    const auto size = static_cast<std::ptrdiff_t>(element_size(lines.type));
    const auto at = [&](std::size_t r) {
      const bool along = lines.column == 1;
      const Matrix corner = along ? lines.at(line + r, (from + piece) * kPieceDepth)
                                  : lines.at(line, from * kPieceDepth + r * count_ + piece);
      return static_cast<const std::byte*>(corner.data);
    };
    return {at(begin), at(end - 1),
            size * (lines.column == 1 ? static_cast<std::ptrdiff_t>(kPieceDepth) : lines.column)};
  }

  /// Asks for 32 rows of sums, from `row` on, behind those of a panel in c.
  void prefetch_sums(std::size_t row, const float* before, std::size_t stride) const {
    if (row >= p_.rows) return;
    const float* at = before + kPanelLines * stride;
    for (std::size_t r = 0; r < kPanelLines; ++r, at += stride) {
      __builtin_prefetch(at, 1, 2);
      __builtin_prefetch(at + 16, 1, 2);
    }
  }

  /// Asks for what the way back through an activation reads of these rows beside the sums, of panel number `i`.
  void ask_for_inputs(std::size_t row, std::size_t i) const {
    const std::size_t rows = std::min(kPanelLines, p_.rows - row);
    const Epilogue of = p_.epilogue.at(row, panel_of(i) * kPanelLines, p_.c.type);
    const auto size = static_cast<std::ptrdiff_t>(element_size(p_.c.type));
    const std::ptrdiff_t bytes = static_cast<std::ptrdiff_t>(kPanelLines) * size;
    const auto* at = static_cast<const std::byte*>(of.u);
    for (std::size_t r = 0; r < rows; ++r, at += of.u_row * size) {
      for (std::ptrdiff_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(at + line, 0, 2);
        if (of.half != 0) __builtin_prefetch(at + of.half * size + line, 0, 2);
      }
    }
  }

  const TileProduct& p_;
  Cut cut_;
  std::uint16_t *left_, *right_;
  float *blocks_, *sums_;
  std::size_t begin_ = 0, end_ = 0;                // the group's panels of columns
  std::size_t chunk_ = 0, first_ = 0, count_ = 0;  // the chunk, its first piece, how many
  struct {
    Sums sums = {};
    std::size_t row = 0, rows = 0;  // of c: the first, how many
  } complete_;                      // sums of the group's columns that are not yet where they are wanted
  Tiles tiles_;
};

}  // namespace

bool reads_in_place(const TileProduct& p) {
  return p.a.type == ElementType::BFloat16 && p.a.column == 1 && p.depth % kPieceDepth == 0;
}

std::size_t tile_scratch_bytes(const TileProduct& p) { return Worker<EmulatedTiles>::bytes(p); }

void tile_product(const TileProduct& product, TileUnit unit, std::byte* scratch) {
#if defined(__x86_64__)
  if (unit == TileUnit::Dots) return Worker<DotTiles>(product, scratch).run();
  if (unit == TileUnit::Hardware) return Worker<HardwareTiles>(product, scratch).run();
#endif
  if (unit == TileUnit::Emulated) Worker<EmulatedTiles>(product, scratch).run();
}

}  // namespace megatron::kernels::cpu
