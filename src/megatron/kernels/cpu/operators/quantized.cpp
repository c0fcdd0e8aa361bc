#include "megatron/kernels/quantized/blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/kernels/cpu/operators/few_rows.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/products/matrix_of.h"
#include "megatron/kernels/cpu/products/quantized_product.h"
#include "megatron/plan/parameters/blocks.h"

namespace megatron::kernels {
namespace {

constexpr std::int64_t kPanel = cpu::kPanelRows, kTile = cpu::kTileRows, kWide = cpu::kWideRows;
static_assert(kPanel == plan::kBlockRows);
static_assert(kQuantizedBlock == static_cast<std::int64_t>(cpu::kLevels));

std::int64_t pieces_of(std::int64_t size, std::int64_t piece) { return (size + piece - 1) / piece; }

cpu::QuantizedPanels panels_of(const QuantizedMatrix& w) {
  return {w.type, w.levels.const_data_ptr<std::uint8_t>(),
          reinterpret_cast<const std::uint16_t*>(w.scales.const_data_ptr<at::Half>()),
          static_cast<std::size_t>(w.levels.size(1))};
}

// ---- ggml's blocks

void put_half(BlockBytes& block, std::size_t at, float value, bool& finite) {
  const c10::Half half(value);
  finite = finite && std::isfinite(static_cast<float>(half));
  std::memcpy(block.data() + at, &half.x, sizeof half.x);
}

/// 32 levels of 0 … 15 from byte `at` on: the lower ones of the bytes before the upper ones.
void put_nibbles(BlockBytes& block, std::size_t at, const std::array<int, kQuantizedBlock>& levels) {
  for (std::size_t i = 0; i < kQuantizedBlock / 2; ++i)
    block[at + i] = static_cast<std::byte>(levels[i] | (levels[i + kQuantizedBlock / 2] << 4));
}

/// 0 … 15 of what is no less than 0.
int level_of_4_bits(float x) { return x < 15 ? static_cast<int>(x) : 15; }

BlockBytes q8_0_block(std::span<const float, kQuantizedBlock> x, bool& finite) {
  BlockBytes block = {};
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::fabs(value));
  const float scale = largest / 127, inverse = scale == 0 ? 0 : 1 / scale;
  put_half(block, 0, scale, finite);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float level = std::round(x[i] * inverse);
    if (std::isfinite(level)) block[2 + i] = static_cast<std::byte>(static_cast<int>(level));  // 1 / 1e-40 is infinite
  }
  return block;
}

BlockBytes q4_0_block(std::span<const float, kQuantizedBlock> x, bool& finite) {
  BlockBytes block = {};
  const float extreme = *std::ranges::max_element(x, {}, [](float value) { return std::fabs(value); });
  const float scale = extreme / -8, inverse = scale == 0 ? 0 : 1 / scale;
  put_half(block, 0, scale, finite);
  std::array<int, kQuantizedBlock> levels = {};
  if (std::isfinite(inverse))
    for (std::size_t i = 0; i < x.size(); ++i) levels[i] = level_of_4_bits(x[i] * inverse + 8.5F);
  put_nibbles(block, 2, levels);
  return block;
}

BlockBytes q4_1_block(std::span<const float, kQuantizedBlock> x, bool& finite) {
  BlockBytes block = {};
  const auto [least, largest] = std::ranges::minmax(x);
  const float scale = (largest - least) / 15, inverse = scale == 0 ? 0 : 1 / scale;
  put_half(block, 0, scale, finite);
  put_half(block, 2, least, finite);
  std::array<int, kQuantizedBlock> levels = {};
  if (std::isfinite(inverse))
    for (std::size_t i = 0; i < x.size(); ++i) levels[i] = level_of_4_bits((x[i] - least) * inverse + 0.5F);
  put_nibbles(block, 4, levels);
  return block;
}

// ---- panels

/// Puts a block into row `row` of its panel's block.
void put_into_panel(const BlockBytes& block, GgufType type, std::int64_t row, std::uint8_t* levels, at::Half* scales) {
  std::uint16_t numbers[2];
  std::memcpy(numbers, block.data(), sizeof numbers);
  scales[row].x = numbers[0];
  if (type == GgufType::Q4_1) scales[kPanel + row].x = numbers[1];
  const std::byte* const from = block.data() + (type == GgufType::Q4_1 ? 4 : 2);
  const std::int64_t bytes = cpu::is_4_bit(type) ? kQuantizedBlock / 2 : kQuantizedBlock;
  for (std::int64_t i = 0; i < bytes; ++i) {
    const auto byte = static_cast<std::uint8_t>(from[i]);
    // 128 more than a signed number is its bits with the first turned over.
    levels[cpu::byte_in_panel(static_cast<std::size_t>(row), static_cast<std::size_t>(i))] =
        type == GgufType::Q8_0 ? byte ^ 0x80 : byte;
  }
}

/// Number `i` of row `row` of a panel's block.
float number_in_panel(const cpu::QuantizedPanels& block, std::int64_t row, std::int64_t i) {
  const int level = cpu::level_in(block.levels, block.type, static_cast<std::size_t>(row), static_cast<std::size_t>(i));
  const auto number = [&](std::int64_t at) {
    return static_cast<float>(c10::Half(block.scales[at], c10::Half::from_bits()));
  };
  const float above = number(row) * static_cast<float>(level - cpu::bias_of(block.type));
  return block.type == GgufType::Q4_1 ? above + number(kPanel + row) : above;
}

// ---- products

/// Inputs in blocks, tiles of rows after one another, in memory of 40 bytes for each 32 numbers. Where there are tiles
/// of integers, as many of kWide rows as there are come first.
class QuantizedInputs {
 public:
  QuantizedInputs(std::byte* memory, std::int64_t rows, std::int64_t blocks)
      : scales_(reinterpret_cast<float*>(memory)),
        corrections_(reinterpret_cast<std::uint32_t*>(scales_ + rows * blocks)),
        levels_(reinterpret_cast<std::int8_t*>(corrections_ + rows * blocks)),
        rows_(rows),
        blocks_(blocks),
        wide_(cpu::integer_tiles() == cpu::TileUnit::None ? 0 : rows / kWide) {}
  static std::int64_t bytes(std::int64_t rows, std::int64_t blocks) { return rows * blocks * (kQuantizedBlock + 8); }

  std::int64_t wide() const { return wide_; }  ///< tiles of kWide rows
  std::int64_t tiles() const { return wide_ + pieces_of(rows_ - wide_ * kWide, kTile); }
  std::int64_t row(std::int64_t i) const { return i < wide_ ? i * kWide : wide_ * kWide + (i - wide_) * kTile; }
  cpu::InputTile tile(std::int64_t i) const {
    const std::int64_t at = row(i) * blocks_, rows = i < wide_ ? kWide : std::min(kTile, rows_ - row(i));
    return {levels_ + at * kQuantizedBlock, scales_ + at, corrections_ + at, static_cast<std::size_t>(rows),
            static_cast<std::size_t>(blocks_)};
  }

 private:
  float* scales_;
  std::uint32_t* corrections_;
  std::int8_t* levels_;
  std::int64_t rows_, blocks_, wide_;
};

/// y [rows, n] = x [rows, k] w^T, of inputs that are rounded to blocks when this is made.
class QuantizedPieces : public cpu::ProductPieces {
 public:
  QuantizedPieces(const at::Tensor& y, const at::Tensor& x, const QuantizedMatrix& w, std::byte* memory);
  void compute(std::int64_t i, int thread) const override;
  const float* arranged_inputs(cpu::ElementType /*type*/) const override { return nullptr; }

 private:
  void multiply_wide(std::int64_t first, std::int64_t last, std::int8_t* levels) const;

  QuantizedInputs inputs_;
  cpu::QuantizedPanels panels_;
  cpu::MutableMatrix y_;
  std::int64_t columns_, panel_count_, step_, tiles_at_once_;
  std::int64_t signed_bytes_;  ///< of a piece's levels, for each thread
  at::Tensor levels_;          ///< where there are wide tiles
};

QuantizedPieces::QuantizedPieces(const at::Tensor& y, const at::Tensor& x, const QuantizedMatrix& w, std::byte* memory)
    : inputs_(memory, x.size(0), w.columns() / kQuantizedBlock),
      panels_(panels_of(w)),
      y_(cpu::mutable_matrix(y)),
      columns_(w.rows()),
      panel_count_(w.levels.size(0)) {
  constexpr std::int64_t kWeightBytes = 1 << 16, kInputBytes = 1 << 18;  // of one piece of work, in caches
  const auto* const from = static_cast<const std::byte*>(x.const_data_ptr());
  cpu::for_each_block(inputs_.tiles(), [&](std::int64_t i, int) {
    cpu::quantize_inputs(from + inputs_.row(i) * w.columns() * x.element_size(), *cpu::element_of(x), w.type,
                         inputs_.tile(i));
  });
  const std::int64_t blocks = w.columns() / kQuantizedBlock;
  step_ = std::max<std::int64_t>(1, kWeightBytes / std::max<std::int64_t>(w.bytes() / panel_count_, 1));
  tiles_at_once_ = std::max<std::int64_t>(1, kInputBytes / QuantizedInputs::bytes(kTile, blocks));
  signed_bytes_ = step_ * blocks * static_cast<std::int64_t>(cpu::kSignedBytes);
  if (inputs_.wide() > 0) levels_ = at::empty({cpu::num_threads(), signed_bytes_}, at::kChar);
  outputs_ = step_ * kPanel;
  count_ = pieces_of(panel_count_, step_);
}

void QuantizedPieces::compute(std::int64_t i, int thread) const {
  const std::int64_t first = i * step_, last = std::min((i + 1) * step_, panel_count_);
  if (levels_.defined()) multiply_wide(first, last, levels_.mutable_data_ptr<std::int8_t>() + thread * signed_bytes_);
  for (std::int64_t begin = inputs_.wide(); begin < inputs_.tiles(); begin += tiles_at_once_)
    for (std::int64_t panel = first; panel < last; ++panel)
      for (std::int64_t t = begin; t < std::min(begin + tiles_at_once_, inputs_.tiles()); ++t) {
        const std::int64_t column = panel * kPanel;
        cpu::panel_product(inputs_.tile(t), panels_.at(static_cast<std::size_t>(panel)),
                           static_cast<std::size_t>(std::min(kPanel, columns_ - column)),
                           y_.at(static_cast<std::size_t>(inputs_.row(t)), static_cast<std::size_t>(column)));
      }
}

void QuantizedPieces::multiply_wide(std::int64_t first, std::int64_t last, std::int8_t* levels) const {
  const cpu::QuantizedPanels those = panels_.at(static_cast<std::size_t>(first));
  cpu::sign_levels(those, static_cast<std::size_t>(last - first), levels);
  const std::int64_t column = first * kPanel, columns = std::min(last * kPanel, columns_) - column;
  // All panels of a tile, so that it is in the nearest cache and what is written is side by side.
  for (std::int64_t t = 0; t < inputs_.wide(); ++t)
    cpu::wide_product(inputs_.tile(t), levels, those, static_cast<std::size_t>(columns),
                      y_.at(static_cast<std::size_t>(inputs_.row(t)), static_cast<std::size_t>(column)));
}

void multiply_in_blocks(const at::Tensor& y, const at::Tensor& x, const QuantizedMatrix& w, std::byte* memory) {
  const QuantizedPieces pieces(y, x, w, memory);
  cpu::for_each_block(pieces.count(), [&](std::int64_t i, int thread) { pieces.compute(i, thread); });
}

bool stored_in_lanes(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

}  // namespace

BlockBytes quantize_block(GgufType type, std::span<const float, kQuantizedBlock> x, bool& finite) {
  bool all = true;
  for (const float value : x) all = all && std::isfinite(value);
  finite = finite && all;
  if (!all) return {};
  switch (type) {
    case GgufType::Q4_0:
      return q4_0_block(x, finite);
    case GgufType::Q4_1:
      return q4_1_block(x, finite);
    default:
      return q8_0_block(x, finite);
  }
}

at::Tensor QuantizedMatrix::widened(std::int64_t begin, std::int64_t count, at::ScalarType dtype) const {
  const at::Tensor to = at::empty({count, k}, at::kFloat);
  auto* const numbers = to.mutable_data_ptr<float>();
  const cpu::QuantizedPanels panels = panels_of(*this);
  cpu::for_each_block(count, [&](std::int64_t i, int) {
    const std::int64_t row = begin + i;
    cpu::QuantizedPanels block = panels.at(static_cast<std::size_t>(row / kPanel));
    for (std::int64_t at = 0; at < k; ++at) {
      if (at > 0 && at % kQuantizedBlock == 0) {
        block.levels += block.level_bytes();
        block.scales += block.scale_count();
      }
      numbers[i * k + at] = number_in_panel(block, row % kPanel, at % kQuantizedBlock);
    }
  });
  return to.to(dtype);
}

QuantizedMatrix quantize(const at::Tensor& w, GgufType type, const std::string& name) {
  const std::int64_t n = w.size(0), k = w.size(1), blocks = k / kQuantizedBlock, panels = pieces_of(n, kPanel);
  const bool two = type == GgufType::Q4_1;
  QuantizedMatrix result{
      .type = type,
      .n = n,
      .k = k,
      .levels = at::zeros({panels, blocks, kPanel * kQuantizedBlock / (cpu::is_4_bit(type) ? 2 : 1)}, at::kByte),
      .scales =
          two ? at::zeros({panels, blocks, 2, kPanel}, at::kHalf) : at::zeros({panels, blocks, kPanel}, at::kHalf)};
  const float* const from = w.const_data_ptr<float>();
  auto* const levels = result.levels.mutable_data_ptr<std::uint8_t>();
  auto* const scales = result.scales.mutable_data_ptr<at::Half>();
  const cpu::QuantizedPanels sizes = panels_of(result);
  std::atomic<bool> finite = true;
  cpu::for_each_block(panels, [&](std::int64_t panel, int) {
    bool panel_is = true;
    for (std::int64_t row = panel * kPanel; row < std::min((panel + 1) * kPanel, n); ++row)
      for (std::int64_t b = 0; b < blocks; ++b) {
        const std::span<const float, kQuantizedBlock> x(from + row * k + b * kQuantizedBlock, kQuantizedBlock);
        const auto at = static_cast<std::size_t>(panel * blocks + b);
        put_into_panel(quantize_block(type, x, panel_is), type, row % kPanel, levels + at * sizes.level_bytes(),
                       scales + at * sizes.scale_count());
      }
    if (!panel_is) finite = false;
  });
  if (!finite)
    throw ConfigError(rule_got_fix(
        concat("Weights held in blocks must be finite, also as scales in half precision: ", printable(name), "."),
        "inf, nan or beyond it", "--weights full"));
  return result;
}

void few_rows_linear(const at::Tensor& y, const at::Tensor& x, const QuantizedMatrix& w, const at::Tensor& scratch) {
  multiply_in_blocks(y, x, w, static_cast<std::byte*>(scratch.mutable_data_ptr()));
}

void few_rows_linear(const at::Tensor& y, const at::Tensor& x, const QuantizedMatrix& w, const at::Tensor& wide,
                     std::span<const LowRankRows> groups, at::Tensor& scratch) {
  const QuantizedPieces pieces(y, x, w, static_cast<std::byte*>(wide.mutable_data_ptr()));
  cpu::multiply_with_low_rank(pieces, y, x, groups, scratch);
}

at::Tensor linear(const at::Tensor& x_any, const QuantizedMatrix& w) {
  if (!stored_in_lanes(x_any.scalar_type())) return linear(x_any.to(at::kFloat), w).to(x_any.scalar_type());
  const at::Tensor x = x_any.reshape({-1, x_any.size(-1)}).contiguous();
  const at::Tensor y = at::empty({x.size(0), w.rows()}, x.options());
  const at::Tensor memory =
      at::empty({QuantizedInputs::bytes(x.size(0), w.columns() / kQuantizedBlock)}, x.options().dtype(at::kByte));
  multiply_in_blocks(y, x, w, reinterpret_cast<std::byte*>(memory.mutable_data_ptr<std::uint8_t>()));
  auto shape = x_any.sizes().vec();
  shape.back() = w.rows();
  return y.view(shape);
}

at::Tensor embedding(const at::Tensor& tokens, const QuantizedMatrix& w, std::int64_t begin, at::ScalarType dtype) {
  const at::Tensor ids = tokens.contiguous();
  auto shape = ids.sizes().vec();
  shape.push_back(w.columns());
  const at::Tensor y = at::zeros(shape, dtype), rows = y.view({-1, w.columns()});
  const auto* const id = ids.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i)
    if (const std::int64_t row = id[i] - begin; row >= 0 && row < w.rows())
      rows.select(0, i).copy_(w.widened(row, 1, dtype).select(0, 0));
  return y;
}

}  // namespace megatron::kernels
