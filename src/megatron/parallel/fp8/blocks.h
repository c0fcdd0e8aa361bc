#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megatron/plan/parameters/fp8.h"

// Numbers in 8 bits whose scales are those of blocks (plan::Fp8Scales::Block): 1 x 128 along the dimension over which a
// product sums, of weights 128 x 128 (DeepSeek-AI 2024, section 3.3.2).
namespace megatron::parallel {

/// What shares a scale: of x [tokens, samples.., features] 128 of an index of all dimensions but the one named, of a
/// weight [outputs, inputs] 128 of each. The last blocks of a dimension may be smaller.
enum class Fp8Tile : std::uint8_t { Features, Tokens, Square };

/// Numbers in 8 bits, and what each block of them is multiplied by.
struct Fp8Blocks {
  at::Tensor numbers;  ///< ATen's float8, x's shape
  /// float32, x's shape with ceil(size / 128) in place of the sizes that are cut into blocks: powers of two, 1/scale by
  /// plan::fp8_scale() without a margin, 2^-126 of zeros. NaN where a number of the block is not finite, so that
  /// products are not either.
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
  /// As cuBLAS reads it. Of tiles [outer, inner/128], of which those of one column lie side by side; of squares
  /// [inner/128, rounded up to a multiple of 4; outer/128], whose columns do.
  at::Tensor inverse;
  bool square = false;
};

/// x [.., inner] in tiles of Features, as rows.
Fp8Matrix fp8_matrix_of_features(const at::Tensor& x, plan::Fp8Type type);
/// x [tokens, samples.., outer] in tiles of Tokens, turned: rows [outer] of all samples' tokens, one sample after the
/// other. 128 divides tokens.
Fp8Matrix fp8_matrix_of_tokens(const at::Tensor& x, plan::Fp8Type type);
/// w [outputs, inputs], of which 128 divides both; `turned`: outer is inputs.
Fp8Matrix fp8_matrix_of_weight(const at::Tensor& w, plan::Fp8Type type, bool turned);

/// a b^T [a's outer, b's outer] in `dtype`, bf16 or float32, sums in float32. On a GPU that plan::require_fp8_units()
/// lets pass; squares in b alone.
at::Tensor fp8_product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType dtype);

}  // namespace megatron::parallel
