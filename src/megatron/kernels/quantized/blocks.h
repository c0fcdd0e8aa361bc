#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "megatron/base/files/gguf.h"

// Matrices of few bits: 32 numbers of a row are a block of ggml's type Q8_0 (levels of 8 bits times a scale), Q4_0
// (4 bits times a scale) or Q4_1 (4 bits times a scale, above a least value). They are weights of models that only
// compute forward, on the CPU. A product rounds its inputs to blocks of 8 bits too and multiplies integers, whatever
// the inputs are stored as (decision 117).
namespace megatron::kernels {

/// Numbers of a row that share a scale.
inline constexpr std::int64_t kQuantizedBlock = 32;

/// A block as a GGUF file has it: gguf_block(type).bytes of it.
using BlockBytes = std::array<std::byte, 34>;
/// As ggml's reference quantizes. Q8_0: the scale max|x| / 127, each level x / scale rounded, halves away from 0. Q4_0:
/// the number of the largest magnitude is level -8 of -8 … 7. Q4_1: the least and the largest are levels 0 and 15.
/// `finite` becomes false where a number is inf or NaN, or the scale or the least value is in half precision.
BlockBytes quantize_block(GgufType type, std::span<const float, kQuantizedBlock> x, bool& finite);

/// In panels of 16 rows, in the order in which a product reads them (cpu/products/quantized_product.h).
struct QuantizedMatrix {
  GgufType type = GgufType::Q8_0;
  std::int64_t n = 0, k = 0;  ///< k a multiple of 32
  at::Tensor levels;          ///< uint8 [panels, k / 32, bytes], of the last panel zeros past row n
  at::Tensor scales;          ///< fp16 [panels, k / 32, 16], of Q4_1 [.., 2, 16]

  std::int64_t rows() const { return n; }
  std::int64_t columns() const { return k; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(levels.nbytes() + scales.nbytes()); }
  /// Rows [begin, begin + count) as the numbers that they stand for: [count, k] of `dtype`, which is rounded to where
  /// it is shorter than float32.
  at::Tensor widened(std::int64_t begin, std::int64_t count, at::ScalarType dtype) const;
  at::Tensor widened(at::ScalarType dtype) const { return widened(0, rows(), dtype); }
};

/// w [n, k] float32, contiguous, k a multiple of 32. Throws ConfigError that calls it `name` where a number is not
/// finite, or a block's scale or least value is beyond half precision.
QuantizedMatrix quantize(const at::Tensor& w, GgufType type, const std::string& name);

/// x w^T, [.., n] of x's dtype: each row gets the same bits whatever the others are, on every instruction set and
/// number of threads. A block of x with a number that is not finite makes its row NaN.
at::Tensor linear(const at::Tensor& x, const QuantizedMatrix& w);
/// Rows of x that are decoded together.
inline constexpr std::int64_t kFewQuantizedRows = 64;
/// y [rows, n] = x [rows, k] w^T, both contiguous, float32, bf16 or fp16. `scratch`: rows * k float32.
void few_rows_linear(const at::Tensor& y, const at::Tensor& x, const QuantizedMatrix& w, const at::Tensor& scratch);

/// Row tokens[..] - begin of w widened to `dtype`, zeros where w has no such row: embedding() of embedding.h.
at::Tensor embedding(const at::Tensor& tokens, const QuantizedMatrix& w, std::int64_t begin, at::ScalarType dtype);

}  // namespace megatron::kernels
