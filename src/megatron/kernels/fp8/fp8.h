#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

// Makes operands of 8 bits (plan/parameters/fp8.h), each in as few passes over memory as its scale allows. A type is
// at::kFloat8_e4m3fn or at::kFloat8_e5m2; x is of a model's type, [.., last]. Nothing here communicates, or waits for
// the device.
namespace megatron::kernels {

/// What numbers are multiplied by before they are rounded, a power of two: two float32 scalars, `scale` on the CPU or
/// where the numbers are, `inverse` where they are. Of blocks two tensors that are broadcast to the numbers.
struct Fp8Scale {
  at::Tensor scale, inverse;
};

/// What shares a scale: of x [first, .., last] `size` numbers along one dimension at an index of all others, of a
/// weight [outputs, inputs] with Along::Both size x size. The last blocks of a dimension may be smaller.
struct Fp8Tile {
  enum class Along : std::uint8_t { Last, First, Both };
  Along along = Along::Last;
  std::int64_t size = 128;
};

/// Which copies a product reads: that of rows sums over x's last dimension, the turned one over the first.
struct Fp8Wanted {
  bool rows = true, turned = false;
};

/// Copies of x by one scale, in 8 bits; undefined where not wanted.
struct Fp8Numbers {
  at::Tensor rows;    ///< x's shape
  at::Tensor turned;  ///< [last, all others], contiguous
};

/// An operand of at::_scaled_mm_v2: `numbers` [outer, inner], contiguous, of which a product sums over `inner`.
struct Fp8Matrix {
  at::Tensor numbers;
  /// As cuBLAS reads it. Of 1 x 128 float32 [outer, inner/128], of which those of one column lie side by side; of
  /// squares [inner/128, rounded up to a multiple of 4; outer/128], whose columns do. Of 1 x 32 E8M0, in tiles of 128
  /// rows and 4 columns, with tiles that numbers do not fill: a tile behind the other of its rows, of a tile 4 numbers
  /// of each of the rows 0, 32, 64 and 96, then of 1, 33, .. Zeros where there are no numbers.
  at::Tensor inverse;
  Fp8Tile tile;
};

/// Copies of x by scales of blocks; of no tensors where not wanted.
struct Fp8Matrices {
  Fp8Matrix rows;    ///< [.., last]
  Fp8Matrix turned;  ///< [last], of x [first, samples.., last] rows of first of all samples, one sample after the other
};

/// The largest magnitude in x: a float32 scalar, NaN where x has one, 0 where x is empty. `seen`, a float32 scalar
/// beside x, becomes the larger of itself and that; undefined: none.
at::Tensor fp8_magnitude(const at::Tensor& x, const at::Tensor& seen);

/// plan::fp8_scale() without a margin of numbers whose largest magnitude is `amax`, each of a float32 tensor. 2^126 of
/// 0; of infinity a power of two as well, and that one of NaN.
Fp8Scale fp8_scale_of(const at::Tensor& amax, at::ScalarType type);

/// The 8-bit numbers nearest to scale * x, ties to even, of a magnitude of at most the type's largest finite one. NaN
/// stays NaN. float64 is rounded to float32 on the way. `seen`: as of fp8_magnitude(), in the same pass.
Fp8Numbers fp8_numbers(const at::Tensor& x, at::ScalarType type, const Fp8Scale& scale, Fp8Wanted wanted,
                       const at::Tensor& seen);
/// The same numbers divided by the scale, in x's type, which has them, and its shape.
at::Tensor fp8_rounded(const at::Tensor& x, at::ScalarType type, const Fp8Scale& scale, const at::Tensor& seen);

/// The numbers nearest to x times the scale of their block's largest magnitude, by fp8_scale_of(); what they are
/// multiplied by again is NaN where a number of the block is not finite. Blocks are those of 1 x `size` numbers, along
/// the last dimension in rows and along the first where turned; `squares`: of x [outputs, inputs] size x size. `size`
/// must divide each dimension that is cut, else std::invalid_argument.
Fp8Matrices fp8_matrices(const at::Tensor& x, at::ScalarType type, std::int64_t size, bool squares, Fp8Wanted wanted);
/// Such numbers of blocks `tile` divided by their scales, in x's type and shape. Any sizes.
at::Tensor fp8_rounded_in_blocks(const at::Tensor& x, at::ScalarType type, Fp8Tile tile);

/// Numbers in 8 bits, and what each block of them is multiplied by.
struct Fp8Blocks {
  at::Tensor numbers;  ///< x's shape
  /// float32, x's shape with ceil(size / tile.size) in place of the sizes that are cut into blocks: powers of two, as
  /// of fp8_matrices().
  at::Tensor inverse;
};
/// What fp8_matrices() has as units read it, by ATen.
Fp8Blocks fp8_in_blocks(const at::Tensor& x, at::ScalarType type, Fp8Tile tile);

}  // namespace megatron::kernels
