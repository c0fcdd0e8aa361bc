#include "megatron/kernels/tile_matmul.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/products/matrix_of.h"
#include "megatron/kernels/cpu/products/tile_product.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/runtime.h"

namespace megatron::kernels {
namespace {

std::atomic<bool>& high_precision_suffices() {
  static std::atomic<bool> high = false;
  return high;
}

/// Three products of bf16, and six, are faster than one of float32 on tiles alone.
bool splits(cpu::TileUnit unit) { return unit == cpu::TileUnit::Hardware || unit == cpu::TileUnit::Emulated; }

/// How many bf16 numbers stand for an element.
std::size_t parts_of(at::ScalarType type) {
  return type == at::kFloat ? high_precision_suffices() ? 2 : cpu::kMostParts : 1;
}
std::size_t parts_of(const at::Tensor& x) { return parts_of(x.scalar_type()); }

std::uint16_t* words_of(const at::Tensor& packed) {
  return reinterpret_cast<std::uint16_t*>(packed.mutable_data_ptr<std::int16_t>());
}

/// How c is cut into pieces of work: rows of one, columns of one.
struct Cut {
  std::size_t rows, columns;
};
std::size_t parts_of(std::size_t size, std::size_t part) { return (size + part - 1) / std::max<std::size_t>(part, 1); }
/// The least whole number of panels that is at least `n` lines.
std::size_t whole_panels(std::size_t n) { return std::max<std::size_t>(cpu::panels_of(n), 1) * cpu::kPanelLines; }

Cut cut_of(const cpu::TileProduct& p, std::size_t threads) {
  // Left operands that have to be packed stay in the second cache; that few columns are left is worse than few rows.
  constexpr std::size_t kRows = 512, kPackedWords = 1 << 19, kLeastColumns = 256;
  const std::size_t row_words = cpu::pieces_of(p.depth) * cpu::kPieceDepth;
  const auto whole = [](std::size_t n) { return std::max<std::size_t>(n / cpu::kPanelLines, 1) * cpu::kPanelLines; };
  const bool there = cpu::reads_in_place(p) || p.packed_a != nullptr;
  const std::size_t most = there ? kRows : kPackedWords / std::max<std::size_t>(row_words, 1);
  Cut cut{whole(std::min(kRows, most)), p.columns};
  const auto pieces = [&] { return parts_of(p.rows, cut.rows) * parts_of(p.columns, cut.columns); };
  // As many pieces as threads, or a multiple of it: the last of them all are done at once.
  std::size_t parts = std::max<std::size_t>(parts_of(p.rows, cut.rows), 1);
  if (parts > 1) parts = (parts + threads - 1) / threads * threads;
  cut.rows = std::min(cut.rows, whole_panels(parts_of(p.rows, parts)));
  while (pieces() < 2 * threads && (cut.columns > kLeastColumns || cut.rows > cpu::kPanelLines)) {
    if (cut.columns > kLeastColumns)
      cut.columns = whole_panels((cut.columns + 1) / 2);
    else
      cut.rows = whole(cut.rows / 2);
  }
  return cut;
}

/// cut_of() where the right operand is packed while it is read: by each piece of work its columns'. First the columns
/// are divided, so that nothing is packed twice.
Cut cut_of_plain(const cpu::TileProduct& p, std::size_t threads) {
  constexpr std::size_t kRows = 2048, kLeastColumns = 256;
  const std::size_t across = std::clamp<std::size_t>(p.columns / kLeastColumns, 1, threads);
  const std::size_t down = std::max(parts_of(p.rows, kRows), parts_of(threads, across));
  return {whole_panels(parts_of(p.rows, down)), whole_panels(parts_of(p.columns, across))};
}

// Products of operands that are split. The sums of a group of panels of columns stay in the second cache, so many
// blocks, and beside them what a chunk of 128 of the depth adds to them: of b 24 KB a panel, and the panel of rows.
constexpr std::size_t kSumBlocks = 192, kMostSplitPanels = 16;
/// Panels of columns of a group beside so many rows.
std::size_t split_panels(std::size_t rows) {
  return std::min(kSumBlocks / std::max<std::size_t>(cpu::panels_of(rows), 1), kMostSplitPanels);
}
/// Whether each thread packs b, chunk by chunk, while it reads it, where both operands would else be packed before,
/// once for all threads: where all rows are one piece of work, so that nothing of b is packed twice.
bool packs_split_b(std::size_t rows, std::size_t columns, std::size_t all_columns, std::size_t threads) {
  constexpr std::size_t kMostRows = 1024, kLeastColumns = 256;
  return rows <= std::min(kMostRows, all_columns) && columns >= threads * kLeastColumns;
}
/// All rows of some columns.
Cut cut_of_columns(const cpu::TileProduct& p, std::size_t threads) {
  constexpr std::size_t kLeastColumns = 256;
  Cut cut{whole_panels(p.rows), whole_panels(parts_of(p.columns, threads))};
  if (cut.columns >= 2 * kLeastColumns) cut.columns = whole_panels(cut.columns / 2);
  return cut;
}

/// With fewer rows a piece, and several pieces of the same columns, it is packed once before.
constexpr std::size_t kRowsWorthPacking = 1024;
/// The most words that one operand of float32 is packed into; larger products are cut (multiply_by_parts).
std::atomic<std::size_t>& most_words() {
  static std::atomic<std::size_t> words = std::size_t{12} << 20;
  return words;
}
/// The first part of `size`, about half, in whole panels and pieces.
std::int64_t half_of(std::int64_t size) {
  constexpr std::int64_t kWhole = cpu::kPanelLines;
  return std::min((size / 2 + kWhole - 1) / kWhole * kWhole, size);
}

}  // namespace

void set_matmul_precision(const std::string& name) {
  if (name != "highest" && name != "high")
    throw ConfigError(rule_got_fix("train.matmul_precision: highest or high.", concat("\"", name, "\""),
                                   "--train.matmul_precision=highest"));
  high_precision_suffices() = name == "high";
  at::Context& context = at::globalContext();
  if (context.allowTF32CuBLAS() != (name == "high")) context.setAllowTF32CuBLAS(name == "high");
}

std::string matmul_precision(at::DeviceType device) {
  if (device == at::kCUDA) return high_precision_suffices() ? "high" : "highest";
  const bool high = high_precision_suffices() && splits(cpu::tile_unit());
  return high ? "high" : "highest";
}

bool on_tiles(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_cpu() || !b.is_cpu() || a.scalar_type() != b.scalar_type()) return false;
  const cpu::TileUnit unit = cpu::tile_unit();
  if (a.scalar_type() == at::kBFloat16) return unit != cpu::TileUnit::None;
  // Six products pay where each packed number is used often enough; the weight is packed anew each time, since its
  // parts would take half as much memory again as it does.
  constexpr std::int64_t kLeastRows = 128, kLeastWidth = 256;
  if (a.scalar_type() != at::kFloat || !splits(unit)) return false;
  return high_precision_suffices() ||
         (a.size(0) >= kLeastRows && std::min({a.size(1), b.size(0), b.size(1)}) >= kLeastWidth);
}

std::size_t set_most_packed_words(std::size_t words) { return most_words().exchange(words); }

bool fits_packed(at::ScalarType type, std::int64_t lines, std::int64_t depth) {
  return cpu::packed_words(static_cast<std::size_t>(lines), static_cast<std::size_t>(depth)) * parts_of(type) <=
         most_words();
}

bool keeps_packed(const at::Tensor& w) { return w.scalar_type() != at::kFloat || high_precision_suffices(); }

namespace {

/// The lines of `operand` as panels, [parts, words].
at::Tensor packed_lines(const at::Tensor& operand, cpu::TileSide side) {
  const at::Tensor laid_out = cpu::laid_out(operand);
  const auto count = static_cast<std::size_t>(operand.size(0)), depth = static_cast<std::size_t>(operand.size(1));
  const std::size_t words = cpu::packed_words(count, depth), panel_words = cpu::packed_words(1, depth);
  const std::size_t parts = parts_of(operand);
  const at::Tensor packed = at::empty({static_cast<std::int64_t>(parts), static_cast<std::int64_t>(words)}, at::kShort);
  std::uint16_t* const to = words_of(packed);
  const cpu::Matrix lines = cpu::matrix(laid_out);
  // Of a piece of work: rows of many panels from end to end, or the lines of one panel.
  const bool side_by_side = lines.row == 1 && lines.column != 1;
  const std::size_t most_lines = (side_by_side ? 12 : 1) * cpu::kPanelLines;
  const std::size_t most_depth = side_by_side ? 8 * cpu::kPieceDepth : std::max<std::size_t>(depth, 1);
  const std::size_t across = (count + most_lines - 1) / most_lines, down = (depth + most_depth - 1) / most_depth;
  cpu::for_each_block(static_cast<std::int64_t>(across * down), [&](std::int64_t i, int) {
    const std::size_t line = static_cast<std::size_t>(i) % across * most_lines;
    const std::size_t k = static_cast<std::size_t>(i) / across * most_depth;
    const std::size_t offset = line / cpu::kPanelLines * panel_words + k / cpu::kPieceDepth * cpu::kPieceWords;
    cpu::pack_panels(lines.at(line, k), std::min(most_lines, count - line), std::min(most_depth, depth - k), side,
                     to + offset, panel_words, parts, words);
  });
  return packed;
}

/// Calls tile_matmul for parts of a product of float32 operands of which one takes too much room when it is packed;
/// whether it did so. Parts of the depth are added up, which an epilogue does not wait for.
bool multiply_by_parts(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Tensor& packed_b,
                       bool accumulate, const cpu::Epilogue& epilogue) {
  const std::int64_t rows = a.size(0), depth = a.size(1), columns = b.size(1);
  const auto too_large = [&](std::int64_t lines) { return !fits_packed(a.scalar_type(), lines, depth); };
  const bool has_epilogue = epilogue.kind != cpu::Epilogue::Kind::None;
  const bool a_is = too_large(rows), b_is = !packed_b.defined() && too_large(columns);
  if (!has_epilogue && !packed_b.defined() && ((a_is && depth >= rows) || (b_is && depth >= columns))) {
    const std::int64_t first = half_of(depth);
    tile_matmul(c, a.narrow(1, 0, first), b.narrow(0, 0, first), {}, accumulate);
    tile_matmul(c, a.narrow(1, first, depth - first), b.narrow(0, first, depth - first), {}, true);
    return true;
  }
  const auto at = [&](std::int64_t row, std::int64_t column) {
    return epilogue.at(static_cast<std::size_t>(row), static_cast<std::size_t>(column), *cpu::element_of(c));
  };
  if (b_is && epilogue.half == 0 && columns > static_cast<std::int64_t>(cpu::kPanelLines)) {
    const std::int64_t first = half_of(columns), rest = columns - first;
    tile_matmul(c.narrow(1, 0, first), a, b.narrow(1, 0, first), {}, accumulate, epilogue);
    tile_matmul(c.narrow(1, first, rest), a, b.narrow(1, first, rest), {}, accumulate, at(0, first));
    return true;
  }
  if (!a_is || rows <= static_cast<std::int64_t>(cpu::kPanelLines)) return false;
  const std::int64_t first = half_of(rows), rest = rows - first;
  const at::Tensor all_b = packed_b.defined() ? packed_b : pack_for_tiles(b);
  tile_matmul(c.narrow(0, 0, first), a.narrow(0, 0, first), b, all_b, accumulate, epilogue);
  tile_matmul(c.narrow(0, first, rest), a.narrow(0, first, rest), b, all_b, accumulate, at(first, 0));
  return true;
}

}  // namespace

at::Tensor pack_for_tiles(const at::Tensor& b) { return packed_lines(b.t(), cpu::TileSide::Right); }

void tile_matmul(const at::Tensor& c, const at::Tensor& a_any, const at::Tensor& b_any, const at::Tensor& packed_b,
                 bool accumulate, const cpu::Epilogue& epilogue) {
  const at::Tensor a = cpu::laid_out(a_any), plain_b = cpu::laid_out(b_any);
  const std::size_t parts = parts_of(a);
  if (parts > 1 && !splits(cpu::tile_unit())) throw std::logic_error("float32 is split for tiles alone");
  if (parts > 1 && multiply_by_parts(c, a, plain_b, packed_b, accumulate, epilogue)) return;
  const auto depth = static_cast<std::size_t>(a.size(1));
  // What two halves have in common, and so has a product whose gradient goes to two.
  const auto columns = static_cast<std::size_t>(epilogue.half != 0 ? epilogue.half : c.size(1));
  const int threads = cpu::num_threads();
  const auto rows = static_cast<std::size_t>(c.size(0)), halves = std::size_t{epilogue.two_halves() ? 2u : 1u};
  const bool packs_b = parts > 1 && !packed_b.defined() &&
                       packs_split_b(rows, columns, columns * halves, static_cast<std::size_t>(threads));
  if (parts > 1 && !packs_b && !packed_b.defined())
    return tile_matmul(c, a, plain_b, pack_for_tiles(plain_b), accumulate, epilogue);
  const at::Tensor packed_a = parts > 1 ? packed_lines(a, cpu::TileSide::Left) : at::Tensor();
  const std::uint16_t* const b = packed_b.defined() ? words_of(packed_b) : nullptr;
  cpu::TileProduct whole{rows,
                         columns,
                         depth,
                         cpu::matrix(a),
                         cpu::matrix(plain_b),
                         packed_a.defined() ? words_of(packed_a) : nullptr,
                         b,
                         packed_a.defined() ? static_cast<std::size_t>(packed_a.size(1)) : 0,
                         b != nullptr ? static_cast<std::size_t>(packed_b.size(1)) : 0,
                         parts,
                         kMostSplitPanels,
                         columns % cpu::kPanelLines == 0,
                         cpu::mutable_matrix(c),
                         accumulate,
                         epilogue};
  const Cut cut = [&] {
    const auto count = static_cast<std::size_t>(threads);
    if (packs_b) return cut_of_columns(whole, count);
    return packed_b.defined() ? cut_of(whole, count) : cut_of_plain(whole, count);
  }();
  if (parts == 1 && !packed_b.defined() && cut.rows < std::min(whole.rows, kRowsWorthPacking))
    return tile_matmul(c, a, plain_b, pack_for_tiles(plain_b), accumulate, epilogue);
  whole.split_panels = split_panels(cut.rows);
  const std::size_t across = (columns + cut.columns - 1) / std::max<std::size_t>(cut.columns, 1);
  const std::size_t down = (whole.rows + cut.rows - 1) / cut.rows, panel_words = cpu::packed_words(1, depth);
  cpu::TileProduct largest = whole;
  largest.rows = cut.rows;
  const auto scratch_bytes = static_cast<std::int64_t>((cpu::tile_scratch_bytes(largest) + 63) / 64 * 64);
  const at::Tensor scratch = at::empty({threads, scratch_bytes}, at::kByte);
  auto* const bytes = reinterpret_cast<std::byte*>(scratch.mutable_data_ptr<std::uint8_t>());
  const cpu::TileUnit unit = cpu::tile_unit();
  cpu::for_each_block(static_cast<std::int64_t>(down * across), [&](std::int64_t i, int thread) {
    const std::size_t row = static_cast<std::size_t>(i) % down * cut.rows;
    const std::size_t column = static_cast<std::size_t>(i) / down * cut.columns;
    cpu::TileProduct part = whole;
    part.rows = std::min(cut.rows, whole.rows - row);
    part.columns = std::min(cut.columns, columns - column);
    part.a = whole.a.at(row, 0);
    part.c = whole.c.at(row, column);
    part.epilogue = epilogue.at(row, column, whole.c.type);
    part.b = whole.b.at(0, column);
    if (part.packed_a != nullptr) part.packed_a += row / cpu::kPanelLines * panel_words;
    if (part.packed_b != nullptr) part.packed_b += column / cpu::kPanelLines * panel_words;
    cpu::tile_product(part, unit, bytes + thread * scratch_bytes);
  });
}

namespace {
// What is written to an inference tensor is not counted.
std::uint32_t version_of(const at::Tensor& x) {
  return x.is_inference() ? 0 : x.unsafeGetTensorImpl()->version_counter().current_version();
}
}  // namespace

bool PackedWeight::holds(const Copy& copy, const at::Tensor& operand) {
  return !operand.is_inference() && copy.words.defined() && copy.version == version_of(operand) &&
         copy.data == operand.const_data_ptr() && copy.parts == parts_of(operand);
}
const at::Tensor& PackedWeight::update(Copy& copy, const at::Tensor& operand) {
  if (holds(copy, operand)) return copy.words;
  copy.words.reset();  // before the new one is allocated
  copy = {pack_for_tiles(operand), version_of(operand), operand.const_data_ptr(), parts_of(operand)};
  return copy.words;
}
bool PackedWeight::makes_copy(std::int64_t rows, bool forward) const {
  if (kept_ == WeightCopies::OfFewerRows) return rows < kRowsPackedWhileRead;
  return forward && kept_ == WeightCopies::All;
}
at::Tensor PackedWeight::kept_for_output(const at::Tensor& w) const {
  return holds(output_, w) ? output_.words : at::Tensor();
}
const at::Tensor& PackedWeight::for_output(const at::Tensor& w) { return update(output_, w.t()); }
const at::Tensor& PackedWeight::for_input_gradient(const at::Tensor& w) { return update(input_, w); }

void written_to(const at::Tensor& x) {
  if (!x.is_inference()) x.unsafeGetTensorImpl()->bump_version();
}

}  // namespace megatron::kernels
