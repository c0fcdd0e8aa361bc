#include "megatron/kernels/cpu/tile_product.h"

#include <algorithm>

#include "megatron/kernels/cpu/tile_multiply.h"

namespace megatron::kernels::cpu {
namespace {

constexpr std::size_t kDepthPieces = 12;  // of a row panel: 24 KB, which stays in the first cache
constexpr std::size_t kGap = 16;          // floats, so that the rows of a tile do not share cache sets
constexpr std::size_t kSumsBytes = kPanelLines * (kTileColumns + kGap) * sizeof(float);
constexpr std::size_t kGroupBytes = 800 << 10;  // of column panels, which stay in the second

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
    const std::size_t most = std::clamp<std::size_t>(kGroupBytes / panel_bytes, 1, kTileColumns / kPanelLines);
    const std::size_t groups = (panels + most - 1) / most;
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t begin = panels * g / groups, end = panels * (g + 1) / groups;
      for (std::size_t row = 0; row < p_.rows; row += kPanelLines) block(row, begin, end);
    }
  }

 private:
  bool split() const { return p_.b_low != nullptr; }
  /// Whether the rows are read where they lie: whole tiles of bf16 numbers.
  bool in_place(std::size_t row) const {
    return !split() && p_.a.type == ElementType::BFloat16 && p_.a.column == 1 && p_.depth % kPieceDepth == 0 &&
           row + kPanelLines <= p_.rows;
  }
  std::uint16_t* packed(std::size_t row, TilePart part) const {
    const std::size_t panel = row / kPanelLines * (split() ? 2 : 1) + (part == TilePart::Low ? 1 : 0);
    return packed_ + panel * pieces_ * kPieceWords;
  }

  void pack_left() {
    for (std::size_t row = 0; row < p_.rows; row += kPanelLines) {
      if (in_place(row)) continue;
      const std::size_t lines = std::min(kPanelLines, p_.rows - row);
      pack_panel(p_.a.at(row, 0), lines, p_.depth, TilePart::High, TileSide::Left, packed(row, TilePart::High));
      if (split())
        pack_panel(p_.a.at(row, 0), lines, p_.depth, TilePart::Low, TileSide::Left, packed(row, TilePart::Low));
    }
  }

  LeftPanel left(std::size_t row, TilePart part) const {
    if (!in_place(row)) {
      constexpr std::ptrdiff_t kTileBytes = kTileWords * sizeof(std::uint16_t);
      return {reinterpret_cast<const std::byte*>(packed(row, part)), 64, kTileBytes, 2 * kTileBytes};
    }
    const std::ptrdiff_t stride = p_.a.row * static_cast<std::ptrdiff_t>(sizeof(std::uint16_t));
    return {static_cast<const std::byte*>(p_.a.at(row, 0).data), stride, 16 * stride, 64};
  }

  /// 32 rows of c, the columns of panels [begin, end).
  void block(std::size_t row, std::size_t begin, std::size_t end) {
    const std::size_t rows = std::min(kPanelLines, p_.rows - row), first = begin * kPanelLines;
    const std::size_t columns = std::min(p_.columns, end * kPanelLines) - first;
    const MutableMatrix c = p_.c.at(row, first);
    // Where c is float32 and the tiles are whole, the sums are taken in c itself.
    const bool in_c = c.type == ElementType::Float32 && rows == kPanelLines && columns % kPanelLines == 0;
    float* const sums = in_c ? static_cast<float*>(c.data) : sums_;
    const std::size_t stride = in_c ? static_cast<std::size_t>(c.row) : (end - begin) * kPanelLines + kGap;
    const std::size_t parts = std::max<std::size_t>((pieces_ + kDepthPieces - 1) / kDepthPieces, 1);
    bool accumulate = in_c && p_.accumulate;
    for (std::size_t part = 0; part < parts; ++part) {
      const std::size_t piece = pieces_ * part / parts, count = pieces_ * (part + 1) / parts - piece;
      const auto add = [&](TilePart a_part, const std::uint16_t* b) {
        const LeftPanel a = left(row, a_part).from(piece);
        for (std::size_t panel = begin; panel < end; ++panel) {
          multiply_tiles(tiles_, a, b + (panel * pieces_ + piece) * kPieceWords, count,
                         sums + (panel - begin) * kPanelLines, stride, accumulate);
        }
        accumulate = true;
      };
      add(TilePart::High, p_.b);
      if (!split()) continue;
      add(TilePart::High, p_.b_low);
      add(TilePart::Low, p_.b);
    }
    if (!in_c) write_sums(sums, stride, rows, columns, c, p_.accumulate);
  }

  const TileProduct& p_;
  std::size_t pieces_;
  float* sums_;
  std::uint16_t* packed_;
  Tiles tiles_;
};

}  // namespace

std::size_t tile_scratch_bytes(std::size_t rows, std::size_t depth, bool split) {
  return kSumsBytes + packed_words(rows, depth) * sizeof(std::uint16_t) * (split ? 2 : 1);
}

void tile_product(const TileProduct& product, TileUnit unit, std::byte* scratch) {
#if defined(__x86_64__)
  if (unit == TileUnit::Hardware) return Worker<HardwareTiles>(product, scratch).run();
#endif
  if (unit == TileUnit::Emulated) Worker<EmulatedTiles>(product, scratch).run();
}

}  // namespace megatron::kernels::cpu
