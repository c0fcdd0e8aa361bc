#include "megatron/kernels/tile_matmul.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>

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

/// Three products of bf16 are faster than one of float32 on tiles alone.
bool splits(cpu::TileUnit unit) { return unit == cpu::TileUnit::Hardware || unit == cpu::TileUnit::Emulated; }

bool split(const at::Tensor& x) { return x.scalar_type() == at::kFloat; }

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
  const std::size_t row_words = cpu::pieces_of(p.depth) * cpu::kPieceDepth * (p.split ? 2 : 1);
  const auto whole = [](std::size_t n) { return std::max<std::size_t>(n / cpu::kPanelLines, 1) * cpu::kPanelLines; };
  const std::size_t most = cpu::reads_in_place(p) ? kRows : kPackedWords / std::max<std::size_t>(row_words, 1);
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

/// The same where the right operand is packed while it is read: by each piece of work its columns'. First the columns
/// are divided, so that nothing is packed twice.
Cut cut_of_plain(const cpu::TileProduct& p, std::size_t threads) {
  constexpr std::size_t kRows = 2048, kLeastColumns = 256;
  const std::size_t across = std::clamp<std::size_t>(p.columns / kLeastColumns, 1, threads);
  const std::size_t down = std::max(parts_of(p.rows, kRows), parts_of(threads, across));
  return {whole_panels(parts_of(p.rows, down)), whole_panels(parts_of(p.columns, across))};
}
/// With fewer rows a piece, and several pieces of the same columns, it is packed once before.
constexpr std::size_t kRowsWorthPacking = 1024;

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
  return a.scalar_type() == at::kFloat && high_precision_suffices() && splits(unit);
}

at::Tensor pack_for_tiles(const at::Tensor& b_any) {
  const at::Tensor b = cpu::laid_out(b_any);
  const auto depth = static_cast<std::size_t>(b.size(0)), columns = static_cast<std::size_t>(b.size(1));
  const std::size_t words = cpu::packed_words(columns, depth), panel_words = cpu::packed_words(1, depth);
  const at::Tensor packed = at::empty({split(b) ? 2 : 1, static_cast<std::int64_t>(words)}, at::kShort);
  std::uint16_t* const to = words_of(packed);
  const cpu::Matrix lines = cpu::matrix(b).transposed();
  // Of a piece of work: rows of many panels from end to end, or the lines of one panel.
  const bool side_by_side = lines.row == 1 && lines.column != 1;
  const std::size_t most_lines = (side_by_side ? 12 : 1) * cpu::kPanelLines;
  const std::size_t most_depth = side_by_side ? 8 * cpu::kPieceDepth : std::max<std::size_t>(depth, 1);
  const std::size_t across = (columns + most_lines - 1) / most_lines, down = (depth + most_depth - 1) / most_depth;
  cpu::for_each_block(static_cast<std::int64_t>(across * down), [&](std::int64_t i, int) {
    const std::size_t line = static_cast<std::size_t>(i) % across * most_lines;
    const std::size_t k = static_cast<std::size_t>(i) / across * most_depth;
    const std::size_t offset = line / cpu::kPanelLines * panel_words + k / cpu::kPieceDepth * cpu::kPieceWords;
    for (const cpu::TilePart part : {cpu::TilePart::High, cpu::TilePart::Low})
      if (part == cpu::TilePart::High || split(b))
        cpu::pack_panels(lines.at(line, k), std::min(most_lines, columns - line), std::min(most_depth, depth - k), part,
                         cpu::TileSide::Right, to + offset + (part == cpu::TilePart::Low ? words : 0), panel_words);
  });
  return packed;
}

void tile_matmul(const at::Tensor& c, const at::Tensor& a_any, const at::Tensor& b_any, const at::Tensor& packed_b,
                 bool accumulate, const cpu::Epilogue& epilogue) {
  const at::Tensor a = cpu::laid_out(a_any), plain_b = cpu::laid_out(b_any);
  const auto depth = static_cast<std::size_t>(a.size(1));
  // What two halves have in common, and so has a product whose gradient goes to two.
  const auto columns = static_cast<std::size_t>(epilogue.half != 0 ? epilogue.half : c.size(1));
  const std::uint16_t* const b = packed_b.defined() ? words_of(packed_b) : nullptr;
  const cpu::TileProduct whole{static_cast<std::size_t>(c.size(0)),
                               columns,
                               depth,
                               cpu::matrix(a),
                               cpu::matrix(plain_b),
                               b,
                               b != nullptr && split(a) ? b + packed_b.size(1) : nullptr,
                               split(a),
                               columns % cpu::kPanelLines == 0,
                               cpu::mutable_matrix(c),
                               accumulate,
                               epilogue};
  const int threads = cpu::num_threads();
  const Cut cut = b != nullptr ? cut_of(whole, static_cast<std::size_t>(threads))
                               : cut_of_plain(whole, static_cast<std::size_t>(threads));
  if (b == nullptr && cut.rows < std::min(whole.rows, kRowsWorthPacking))
    return tile_matmul(c, a, plain_b, pack_for_tiles(plain_b), accumulate, epilogue);
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
    if (part.packed_b != nullptr) part.packed_b += column / cpu::kPanelLines * panel_words;
    if (part.packed_b_low != nullptr) part.packed_b_low += column / cpu::kPanelLines * panel_words;
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
         copy.data == operand.const_data_ptr() && copy.split == split(operand);
}
const at::Tensor& PackedWeight::update(Copy& copy, const at::Tensor& operand) {
  if (holds(copy, operand)) return copy.words;
  copy.words.reset();  // before the new one is allocated
  copy = {pack_for_tiles(operand), version_of(operand), operand.const_data_ptr(), split(operand)};
  return copy.words;
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
