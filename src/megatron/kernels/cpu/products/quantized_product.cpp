#include "megatron/kernels/cpu/products/quantized_product.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

// What the other units do, plainly: their truth, and what runs where there is none.
namespace megatron::kernels::cpu {
namespace {

float number_at(const void* from, ElementType type, std::size_t i) {
  switch (type) {
    case ElementType::Float32:
      return static_cast<const float*>(from)[i];
    case ElementType::BFloat16:
      return static_cast<float>(static_cast<const c10::BFloat16*>(from)[i]);
    case ElementType::Float16:
      return static_cast<float>(static_cast<const c10::Half*>(from)[i]);
  }
  return 0;
}

void put_number(float value, const MutableMatrix& c, std::size_t row, std::size_t column) {
  void* const to = c.at(row, column).data;
  switch (c.type) {
    case ElementType::Float32:
      *static_cast<float*>(to) = value;
      return;
    case ElementType::BFloat16:
      *static_cast<c10::BFloat16*>(to) = value;
      return;
    case ElementType::Float16:
      *static_cast<c10::Half*>(to) = value;
  }
}

void quantize_inputs_plainly(const void* from, ElementType type, GgufType weights, const InputTile& to) {
  for (std::size_t row = 0; row < to.rows; ++row)
    for (std::size_t b = 0; b < to.blocks; ++b) {
      const std::size_t first = (row * to.blocks + b) * kLevels, at = b * to.rows + row;
      float largest = 0;
      bool finite = true;
      for (std::size_t i = 0; i < kLevels; ++i) {
        const float value = std::fabs(number_at(from, type, first + i));
        finite = finite && std::isfinite(value);
        largest = std::max(largest, value);
      }
      const bool holds = finite && largest >= kLeastInput;
      const float inverse = holds ? 127 / largest : 0;
      std::int32_t sum = 0;
      for (std::size_t i = 0; i < kLevels; ++i) {
        const float level = holds ? std::nearbyint(number_at(from, type, first + i) * inverse) : 0;
        to.levels[at * kLevels + i] = static_cast<std::int8_t>(level);
        sum += static_cast<std::int32_t>(level);
      }
      const float scale = !finite ? std::numeric_limits<float>::quiet_NaN() : holds ? largest / 127 : 0;
      to.scales[at] = scale;
      to.corrections[at] = correction_of(weights, scale, sum);
    }
}

float half_of(std::uint16_t bits) { return static_cast<float>(c10::Half(bits, c10::Half::from_bits())); }

void panel_product_plainly(const InputTile& x, const QuantizedPanels& w, std::size_t columns, const MutableMatrix& c) {
  for (std::size_t row = 0; row < x.rows; ++row)
    for (std::size_t column = 0; column < columns; ++column) {
      float sum = 0;
      for (std::size_t b = 0; b < x.blocks; ++b) {
        const std::size_t at = b * x.rows + row;
        const std::uint32_t correction = x.corrections[at];
        std::int32_t dot = w.type == GgufType::Q4_1 ? 0 : std::bit_cast<std::int32_t>(correction);
        for (std::size_t i = 0; i < kLevels; ++i)
          dot += level_in(w.levels + b * w.level_bytes(), w.type, column, i) * x.levels[at * kLevels + i];
        const std::uint16_t* const scales = w.scales + b * w.scale_count() + column;
        sum = std::fma(static_cast<float>(dot), half_of(*scales) * x.scales[at], sum);
        if (w.type == GgufType::Q4_1)
          sum = std::fma(half_of(scales[kPanelRows]), std::bit_cast<float>(correction), sum);
      }
      put_number(sum, c, row, column);
    }
}

}  // namespace

std::uint32_t correction_of(GgufType weights, float scale, std::int32_t sum) {
  if (weights == GgufType::Q4_1) return std::bit_cast<std::uint32_t>(scale * static_cast<float>(sum));
  return std::bit_cast<std::uint32_t>(-bias_of(weights) * sum);
}

void quantize_inputs(const void* from, ElementType type, GgufType weights, const InputTile& to) {
  const auto unit = integer_unit() == IntegerUnit::Plain ? quantize_inputs_plainly : quantize_inputs_avx2;
  unit(from, type, weights, to);
}

void panel_product(const InputTile& x, const QuantizedPanels& w, std::size_t columns, const MutableMatrix& c) {
  const IntegerUnit unit = integer_unit();
  const auto product = unit == IntegerUnit::Vnni   ? panel_product_vnni
                       : unit == IntegerUnit::Avx2 ? panel_product_avx2
                                                   : panel_product_plainly;
  product(x, w, columns, c);
}

}  // namespace megatron::kernels::cpu
