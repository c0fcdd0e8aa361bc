#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

// Matrices of 8-bit numbers of which 32 side by side have a scale: ggml's Q8_0. They are weights of models that only
// compute forward, on the CPU (decision 113): a product reads a quarter of float32's bytes, and computes in float32
// with each weight widened, whatever the inputs are stored as.
namespace megatron::kernels {

/// Numbers of a row that share a scale.
inline constexpr std::int64_t kQuantizedBlock = 32;

struct QuantizedBlock {
  std::uint16_t scale = 0;  ///< bits of fp16
  std::array<std::int8_t, kQuantizedBlock> levels = {};
};

/// As ggml's reference quantizes: the scale max|x| / 127 in half precision, each level x / scale rounded, halves away
/// from 0. `finite` becomes false where a number, or the scale, is inf or NaN.
QuantizedBlock quantize_block(std::span<const float, kQuantizedBlock> x, bool& finite);

struct QuantizedMatrix {
  at::Tensor levels;  ///< [n, k] int8, k a multiple of 32
  at::Tensor scales;  ///< [n, k / 32] fp16: element (i, j) is level (i, j) times scale (i, j / 32)

  std::int64_t rows() const { return levels.size(0); }
  std::int64_t columns() const { return levels.size(1); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(levels.nbytes() + scales.nbytes()); }
  /// Rows [begin, begin + count) widened: [count, k] of `dtype`, which is rounded to where it is shorter than float32.
  at::Tensor widened(std::int64_t begin, std::int64_t count, at::ScalarType dtype) const;
  at::Tensor widened(at::ScalarType dtype) const { return widened(0, rows(), dtype); }
};

/// w [n, k] float32, contiguous, k a multiple of 32. Throws ConfigError that calls it `name` where a number is not
/// finite.
QuantizedMatrix quantize(const at::Tensor& w, const std::string& name);

/// x w^T, [.., n] of x's dtype. Few rows of x, at most kFewQuantizedRows, read w once and get each the same bits
/// whatever the others are; of more rows w is widened to x's dtype piece by piece.
at::Tensor linear(const at::Tensor& x, const QuantizedMatrix& w);
inline constexpr std::int64_t kFewQuantizedRows = 16;
/// y [rows, n] = x [rows, k] w^T of at most kFewQuantizedRows rows, both contiguous, by the vector kernels. `wide`:
/// scratch of rows * k float32; may be undefined where x is float32.
void few_rows_linear(const at::Tensor& y, const at::Tensor& x, const QuantizedMatrix& w, const at::Tensor& wide);

/// Row tokens[..] - begin of w widened to `dtype`, zeros where w has no such row: embedding() of embedding.h.
at::Tensor embedding(const at::Tensor& tokens, const QuantizedMatrix& w, std::int64_t begin, at::ScalarType dtype);

}  // namespace megatron::kernels
