#include "megatron/kernels/cpu/products/tile_product.h"

#include <algorithm>

#include "megatron/kernels/cpu/products/tile_multiply.h"

namespace megatron::kernels::cpu {
namespace {

constexpr std::size_t kDepthPieces = 12;  // of a row panel: 24 KB, which stays in the first cache
constexpr std::size_t kGap = 16;          // floats, so that the rows of a tile do not share cache sets
constexpr std::size_t kSumsBytes = kPanelLines * (kTileColumns + kGap) * sizeof(float);
constexpr std::size_t kGroupBytes = 800 << 10;  // of column panels, which stay in the second
// Of panels too deep for that, pieces of so many stay there, while so many rows go by. What they add to is kept.
constexpr std::size_t kDeepPanels = 12, kDeepRows = 4 * kPanelLines;
static_assert(kDeepRows * (kDeepPanels * kPanelLines + kGap) * sizeof(float) <= kSumsBytes);

/// One call of tile_product.
template <class Tiles>
class Worker {
 public:
  Worker(const TileProduct& product, std::byte* scratch)
      : p_(product),
        pieces_(pieces_of(product.depth)),
        sums_(reinterpret_cast<float*>(scratch)),
        packed_(reinterpret_cast<std::uint16_t*>(scratch + kSumsBytes)) {}

  void run() {
    pack_left();
    const std::size_t panels = panels_of(p_.columns), operands = p_.b_low != nullptr ? 2 : 1;
    const std::size_t panel_bytes = std::max<std::size_t>(pieces_ * kPieceWords * sizeof(std::uint16_t) * operands, 1);
    const bool deep = kGroupBytes / panel_bytes < kDeepPanels;
    const std::size_t most =
        (deep ? kDeepPanels : std::min(kGroupBytes / panel_bytes, kTileColumns / kPanelLines)) / halves();
    const std::size_t groups = (panels + most - 1) / most, rows = deep ? kDeepRows : kPanelLines;
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t begin = panels * g / groups, end = panels * (g + 1) / groups;
      for (std::size_t row = 0; row < p_.rows; row += rows) block(row, std::min(rows, p_.rows - row), begin, end);
    }
  }

 private:
  bool split() const { return p_.b_low != nullptr; }
  std::size_t halves() const { return p_.epilogue.two_halves() ? 2 : 1; }
  bool in_place(std::size_t row) const { return reads_in_place(p_) && row + kPanelLines <= p_.rows; }
  std::uint16_t* packed(std::size_t row, TilePart part) const {
    const std::size_t line = reads_in_place(p_) ? 0 : row / kPanelLines;
    const std::size_t panel = line * (split() ? 2 : 1) + (part == TilePart::Low ? 1 : 0);
    return packed_ + panel * pieces_ * kPieceWords;
  }

  void pack_left() {
    const std::size_t first = reads_in_place(p_) ? p_.rows / kPanelLines * kPanelLines : 0, lines = p_.rows - first;
    const std::size_t words = pieces_ * kPieceWords * (split() ? 2 : 1);
    for (const TilePart part : {TilePart::High, TilePart::Low})
      if (part == TilePart::High || split())
        pack_panels(p_.a.at(first, 0), lines, p_.depth, part, TileSide::Left, packed(first, part), words);
  }

  LeftPanel left(std::size_t row, TilePart part) const {
    const std::size_t rows = std::min(kPanelLines, p_.rows - row);
    if (!in_place(row)) {
      constexpr std::ptrdiff_t kTileBytes = kTileWords * sizeof(std::uint16_t);
      return {reinterpret_cast<const std::byte*>(packed(row, part)), 64, kTileBytes, 2 * kTileBytes, rows};
    }
    const std::ptrdiff_t stride = p_.a.row * static_cast<std::ptrdiff_t>(sizeof(std::uint16_t));
    return {static_cast<const std::byte*>(p_.a.at(row, 0).data), stride, 16 * stride, 64, rows};
  }

  /// Rows [row, row + rows) of c, the columns of panels [begin, end).
  void block(std::size_t row, std::size_t rows, std::size_t begin, std::size_t end) {
    const std::size_t first = begin * kPanelLines, columns = std::min(p_.columns, end * kPanelLines) - first;
    const MutableMatrix c = p_.c.at(row, first);
    // Where c is float32 and the tiles are whole, the sums are taken in c itself.
    const bool in_c = c.type == ElementType::Float32 && rows % kPanelLines == 0 && columns % kPanelLines == 0;
    float* const sums = in_c ? static_cast<float*>(c.data) : sums_;
    const std::size_t held = (end - begin) * kPanelLines, next_half = static_cast<std::size_t>(p_.epilogue.half);
    const std::size_t stride = in_c ? static_cast<std::size_t>(c.row) : halves() * held + kGap;
    const std::size_t second = in_c ? next_half : held;
    const std::size_t parts = std::max<std::size_t>((pieces_ + kDepthPieces - 1) / kDepthPieces, 1);
    for (std::size_t part = 0; part < parts; ++part) {
      const std::size_t piece = pieces_ * part / parts, count = pieces_ * (part + 1) / parts - piece;
      for (std::size_t r = 0; r < rows; r += kPanelLines) {
        const auto add = [&](TilePart a_part, const std::uint16_t* b, bool accumulate) {
          const LeftPanel a = left(row + r, a_part).from(piece);
          for (std::size_t half = 0; half < halves(); ++half) {
            const std::uint16_t* const from = b + half * next_half / kPanelLines * pieces_ * kPieceWords;
            for (std::size_t panel = begin; panel < end; ++panel) {
              multiply_tiles(tiles_, a, from + (panel * pieces_ + piece) * kPieceWords, count,
                             sums + r * stride + half * second + (panel - begin) * kPanelLines, stride, accumulate);
            }
          }
        };
        add(TilePart::High, p_.b, part > 0 || (in_c && p_.accumulate));
        if (split()) {
          add(TilePart::High, p_.b_low, true);
          add(TilePart::Low, p_.b, true);
        }
        if (part + 1 < parts) continue;
        const Sums done{sums + r * stride, stride, second};
        const std::size_t lines = std::min(kPanelLines, rows - r);
        if (p_.epilogue.kind != Epilogue::Kind::None)
          finish(done, lines, columns, c.at(r, 0), p_.epilogue.at(row + r, first, c.type));
        else if (!in_c)
          write_sums(done.data, stride, lines, columns, c.at(r, 0), p_.accumulate);
      }
    }
  }

  const TileProduct& p_;
  std::size_t pieces_;
  float* sums_;
  std::uint16_t* packed_;
  Tiles tiles_;
};

}  // namespace

bool reads_in_place(const TileProduct& p) {
  return p.b_low == nullptr && p.a.type == ElementType::BFloat16 && p.a.column == 1 && p.depth % kPieceDepth == 0;
}

std::size_t tile_scratch_bytes(const TileProduct& p) {
  const std::size_t packed_rows = reads_in_place(p) ? 1 : p.rows;
  return kSumsBytes + packed_words(packed_rows, p.depth) * sizeof(std::uint16_t) * (p.b_low != nullptr ? 2 : 1);
}

void tile_product(const TileProduct& product, TileUnit unit, std::byte* scratch) {
#if defined(__x86_64__)
  if (unit == TileUnit::Dots) return Worker<DotTiles>(product, scratch).run();
  if (unit == TileUnit::Hardware) return Worker<HardwareTiles>(product, scratch).run();
#endif
  if (unit == TileUnit::Emulated) Worker<EmulatedTiles>(product, scratch).run();
}

}  // namespace megatron::kernels::cpu
