#pragma once
#include <cstddef>
#include <cstdint>

#include "megatron/kernels/cpu/products/matrix.h"

// Matrices of 8-bit numbers, of which each 32 of a row have a scale (kernels/quantized/q8_0.h), one call being one
// piece of work for one thread.
namespace megatron::kernels::cpu {

/// Rows of such a matrix, contiguous: depth a multiple of 32.
struct QuantizedRows {
  const std::int8_t* levels;    ///< [rows, depth]
  const std::uint16_t* scales;  ///< [rows, depth / 32], bits of fp16
  std::size_t rows, depth;

  QuantizedRows at(std::size_t row, std::size_t count) const {
    return {levels + row * depth, scales + row * (depth / 32), count, depth};
  }
};

/// c [rows, w.rows] = x [rows, w.depth] w^T where x, float32 and contiguous, has few rows: each row of w is read once
/// and widened in registers. Each row of c has the bits that few_rows_product() gives for the widened matrix.
void quantized_product(const float* x, std::size_t rows, const QuantizedRows& w, const MutableMatrix& c);

/// Level times scale, in float32 and rounded to `type` where that is shorter: [rows, depth], contiguous.
void widen(const QuantizedRows& w, void* to, ElementType type);

}  // namespace megatron::kernels::cpu
