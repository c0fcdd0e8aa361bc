#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megatron/plan/parameters/fp8.h"

// Numbers in 8 bits whose scales are those of blocks: of plan::Fp8Scales::Block (DeepSeek-AI 2024, section 3.3.2) and
// of plan::Fp8Scales::Mx (Rouhani et al. 2023, Microscaling Data Formats for Deep Learning).
namespace megatron::parallel {

/// What shares a scale: of x [first, .., last] `size` numbers along one dimension at an index of all others, of a
/// weight [outputs, inputs] with Along::Both size x size. The last blocks of a dimension may be smaller.
struct Fp8Tile {
  enum class Along : std::uint8_t { Last, First, Both };
  Along along = Along::Last;
  std::int64_t size = plan::kFp8Block;
};

/// Numbers in 8 bits, and what each block of them is multiplied by.
struct Fp8Blocks {
  at::Tensor numbers;  ///< ATen's float8, x's shape
  /// float32, x's shape with ceil(size / tile.size) in place of the sizes that are cut into blocks: powers of two,
  /// 1/scale by plan::fp8_scale() without a margin, 2^-126 of zeros. NaN where a number of the block is not finite, so
  /// that products are not either.
  at::Tensor inverse;
};

/// Each block of x by the scale of its largest magnitude. Communication: none. Does not wait for the device.
Fp8Blocks fp8_in_blocks(const at::Tensor& x, plan::Fp8Type type, Fp8Tile tile);
/// The numbers of fp8_in_blocks() divided by their scales, in x's dtype, which has them.
at::Tensor fp8_rounded_in_blocks(const at::Tensor& x, plan::Fp8Type type, Fp8Tile tile);

/// x [m, n], whose columns lie one after the other.
at::Tensor by_columns(const at::Tensor& x);

/// An operand of at::_scaled_mm_v2: `numbers` [outer, inner], contiguous, of which a product sums over `inner`.
struct Fp8Matrix {
  at::Tensor numbers;
  /// As cuBLAS reads it. Of 1 x 128 float32 [outer, inner/128], of which those of one column lie side by side; of
  /// squares [inner/128, rounded up to a multiple of 4; outer/128], whose columns do. Of 1 x 32 E8M0, in tiles of 128
  /// rows and 4 columns, with tiles that numbers do not fill: a tile behind the other of its rows, of a tile 4 numbers
  /// of each of the rows 0, 32, 64 and 96, then of 1, 33, ..
  at::Tensor inverse;
  Fp8Tile tile;
};

/// x in tiles along one dimension, as rows of this dimension: with Along::Last [.., last]; with Along::First turned,
/// [last] rows of first of all samples of x [first, samples.., last], one sample after the other. tile.size divides the
/// dimension.
Fp8Matrix fp8_matrix_of_tiles(const at::Tensor& x, plan::Fp8Type type, Fp8Tile tile);
/// w [outputs, inputs] in squares, of which 128 divides both; `turned`: outer is inputs.
Fp8Matrix fp8_matrix_of_squares(const at::Tensor& w, plan::Fp8Type type, bool turned);

/// a b^T [a's outer, b's outer] in `dtype`, bf16 or float32, sums in float32. Of tiles of one size, squares in b alone,
/// both E4M3: ATen takes no other. On a GPU that plan::require_fp8_units() lets pass.
at::Tensor fp8_product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType dtype);

}  // namespace megatron::parallel
