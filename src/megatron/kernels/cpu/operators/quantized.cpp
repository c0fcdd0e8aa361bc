#include "megatron/kernels/quantized/q8_0.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/kernels/cpu/products/matrix_of.h"
#include "megatron/kernels/cpu/products/quantized_product.h"
#include "megatron/kernels/matmul.h"

namespace megatron::kernels {
namespace {

cpu::QuantizedRows rows_of_matrix(const QuantizedMatrix& w, std::int64_t begin, std::int64_t count) {
  const cpu::QuantizedRows all{w.levels.const_data_ptr<std::int8_t>(),
                               reinterpret_cast<const std::uint16_t*>(w.scales.const_data_ptr<at::Half>()),
                               static_cast<std::size_t>(w.rows()), static_cast<std::size_t>(w.columns())};
  return all.at(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

/// What runs where there are no vector kernels.
void widen_plainly(const cpu::QuantizedRows& w, float* to) {
  for (std::size_t i = 0; i < w.rows * w.depth; ++i)
    to[i] = static_cast<float>(c10::Half(w.scales[i / kQuantizedBlock], c10::Half::from_bits())) *
            static_cast<float>(w.levels[i]);
}

bool stored_as_it_is(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

std::int64_t pieces_of(std::int64_t size, std::int64_t piece) { return (size + piece - 1) / piece; }

}  // namespace

QuantizedBlock quantize_block(std::span<const float, kQuantizedBlock> x, bool& finite) {
  float largest = 0;
  for (const float value : x) {
    finite = finite && std::isfinite(value);
    largest = std::max(largest, std::fabs(value));
  }
  const float scale = largest / 127;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  const c10::Half half(scale);
  finite = finite && std::isfinite(static_cast<float>(half));
  QuantizedBlock block{.scale = half.x};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float level = std::round(x[i] * inverse);
    block.levels[i] = std::isfinite(level) ? static_cast<std::int8_t>(level) : std::int8_t{0};  // 1 / 1e-40 is infinite
  }
  return block;
}

at::Tensor QuantizedMatrix::widened(std::int64_t begin, std::int64_t count, at::ScalarType dtype) const {
  if (!stored_as_it_is(dtype)) return widened(begin, count, at::kFloat).to(dtype);
  const bool vectors = cpu::enabled();
  at::Tensor to = at::empty({count, columns()}, vectors ? dtype : at::kFloat);
  constexpr std::int64_t kElements = 1 << 15;  // of one piece of work
  const std::int64_t step = std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(columns(), 1));
  auto* const bytes = static_cast<std::byte*>(to.mutable_data_ptr());
  const std::int64_t row_bytes = columns() * to.element_size();
  cpu::for_each_block(pieces_of(count, step), [&](std::int64_t i, int) {
    const auto rows = rows_of_matrix(*this, begin + i * step, std::min(step, count - i * step));
    std::byte* const first = bytes + i * step * row_bytes;
    if (vectors)
      cpu::widen(rows, first, *cpu::element_of(to));
    else
      widen_plainly(rows, reinterpret_cast<float*>(first));
  });
  return to.to(dtype);
}

QuantizedMatrix quantize(const at::Tensor& w, const std::string& name) {
  const std::int64_t n = w.size(0), k = w.size(1), blocks = k / kQuantizedBlock;
  QuantizedMatrix result{at::empty({n, k}, at::kChar), at::empty({n, blocks}, at::kHalf)};
  const float* const from = w.const_data_ptr<float>();
  auto* const levels = result.levels.mutable_data_ptr<std::int8_t>();
  auto* const scales = result.scales.mutable_data_ptr<at::Half>();
  std::atomic<bool> finite = true;
  cpu::for_each_block(n, [&](std::int64_t row, int) {
    bool row_is = true;
    for (std::int64_t b = row * blocks; b < (row + 1) * blocks; ++b) {
      const std::span<const float, kQuantizedBlock> x(from + b * kQuantizedBlock, kQuantizedBlock);
      const QuantizedBlock block = quantize_block(x, row_is);
      scales[b].x = block.scale;
      std::memcpy(levels + b * kQuantizedBlock, block.levels.data(), block.levels.size());
    }
    if (!row_is) finite = false;
  });
  if (!finite)
    throw ConfigError(
        rule_got_fix(concat("Weights must be finite, and below 8e6, to be held as q8_0: ", printable(name), "."),
                     "inf, nan or more", "--weights full"));
  return result;
}

void few_rows_linear(const at::Tensor& y, const at::Tensor& x, const QuantizedMatrix& w, const at::Tensor& wide) {
  constexpr std::int64_t kWeightBytes = 1 << 16;  // of one piece of work
  const std::int64_t rows = x.size(0), depth = w.columns(), columns = w.rows();
  const void* x_wide = x.const_data_ptr();
  if (x.scalar_type() != at::kFloat) {
    float* const to = wide.mutable_data_ptr<float>();
    cpu::arrange_few_rows(x_wide, *cpu::element_of(x), cpu::ElementType::Float32, to, static_cast<std::size_t>(rows),
                          static_cast<std::size_t>(depth));
    x_wide = to;
  }
  const std::int64_t step = (kWeightBytes / std::max<std::int64_t>(depth, 1) + 4) / 4 * 4;
  const cpu::MutableMatrix c = cpu::mutable_matrix(y);
  cpu::for_each_block(pieces_of(columns, step), [&](std::int64_t i, int) {
    const std::int64_t column = i * step;
    cpu::quantized_product(static_cast<const float*>(x_wide), static_cast<std::size_t>(rows),
                           rows_of_matrix(w, column, std::min(step, columns - column)),
                           c.at(0, static_cast<std::size_t>(column)));
  });
}

at::Tensor linear(const at::Tensor& x_any, const QuantizedMatrix& w) {
  const at::Tensor x = x_any.reshape({-1, x_any.size(-1)}).contiguous();
  const std::int64_t rows = x.size(0), columns = w.rows();
  const at::Tensor y = at::empty({rows, columns}, x.options());
  auto shape = x_any.sizes().vec();
  shape.back() = columns;
  if (rows <= kFewQuantizedRows && cpu::enabled() && stored_as_it_is(x.scalar_type())) {
    few_rows_linear(y, x, w,
                    x.scalar_type() == at::kFloat ? at::Tensor() : at::empty(x.sizes(), x.options().dtype(at::kFloat)));
    return y.view(shape);
  }
  constexpr std::int64_t kElements = 1 << 20, kPanels = 64;  // of a piece that is widened; columns of whole panels
  const std::int64_t step =
      std::max<std::int64_t>(1, kElements / kPanels / std::max<std::int64_t>(w.columns(), 1)) * kPanels;
  for (std::int64_t begin = 0; begin < columns; begin += step) {
    const std::int64_t count = std::min(step, columns - begin);
    y.narrow(1, begin, count).copy_(kernels::linear(x, w.widened(begin, count, x.scalar_type())));
  }
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
