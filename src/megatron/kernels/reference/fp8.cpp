#include "megatron/kernels/fp8/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "megatron/kernels/reference.h"

namespace megatron::kernels {
namespace {

using Along = Fp8Tile::Along;

double largest_of(at::ScalarType type) { return type == at::kFloat8_e4m3fn ? 448 : 57344; }

/// What numbers are scaled in, so that only the 8-bit number is rounded: fp16 has too few exponents.
at::ScalarType scaled_type(at::ScalarType type) { return type == at::kHalf ? at::kFloat : type; }

/// A scale, so that what it multiplies stays of `type`: a scalar changes no type.
at::Tensor of_type(const at::Tensor& scale, at::ScalarType type) { return scale.dim() == 0 ? scale : scale.to(type); }

at::Tensor quantized(const at::Tensor& x, at::ScalarType type, const Fp8Scale& scale) {
  const double most = largest_of(type);
  const at::ScalarType wide = scaled_type(x.scalar_type());
  return x.detach().to(wide).mul(of_type(scale.scale, wide)).clamp_(-most, most).to(type);
}
at::Tensor divided(const at::Tensor& numbers, const at::Tensor& inverse, at::ScalarType dtype) {
  const at::ScalarType wide = scaled_type(dtype);
  return numbers.to(wide).mul_(of_type(inverse, wide)).to(dtype);
}

void note(const at::Tensor& x, const at::Tensor& seen) {
  if (seen.defined()) (void)reference::fp8_magnitude(x, seen);
}

/// The dimensions of x that are cut, ascending.
std::vector<std::int64_t> cut_dimensions(const at::Tensor& x, Along along) {
  if (along == Along::Both) return {0, 1};
  return {along == Along::First ? 0 : x.dim() - 1};
}

/// What lacks at `count` for a multiple of `unit`.
std::int64_t behind(std::int64_t count, std::int64_t unit) { return (unit - count % unit) % unit; }

/// x, each of its `dimensions` cut into [blocks, size], with zeros behind the last numbers.
at::Tensor cut(at::Tensor x, const std::vector<std::int64_t>& dimensions, std::int64_t size) {
  for (auto dimension = dimensions.rbegin(); dimension != dimensions.rend(); ++dimension) {
    if (const std::int64_t zeros = behind(x.size(*dimension), size); zeros > 0) {
      std::vector<std::int64_t> sides(static_cast<std::size_t>(2 * (x.dim() - *dimension)), 0);
      sides.back() = zeros;  // the last dimension's come first
      x = at::constant_pad_nd(x, sides);
    }
    x = x.unflatten(*dimension, {-1, size});
  }
  return x;
}

/// What cut() made of a tensor like `x`, in its shape again.
at::Tensor joined(at::Tensor blocks, const std::vector<std::int64_t>& dimensions, const at::Tensor& x) {
  for (const std::int64_t dimension : dimensions)
    blocks = blocks.flatten(dimension, dimension + 1).narrow(dimension, 0, x.size(dimension));
  return blocks.contiguous();
}

/// Numbers and scales of x as cut() shapes them: of the scales each size of a block is 1.
struct CutBlocks {
  at::Tensor numbers, inverse;
};

CutBlocks in_cut_blocks(const at::Tensor& x, at::ScalarType type, const std::vector<std::int64_t>& dimensions,
                        std::int64_t size) {
  const at::Tensor blocks = cut(x.detach(), dimensions, size);
  std::vector<std::int64_t> within;  // each cut moves those behind it by one
  for (std::size_t i = 0; i < dimensions.size(); ++i)
    within.push_back(dimensions[i] + 1 + static_cast<std::int64_t>(i));
  const at::Tensor largest = at::amax(blocks.abs(), within, /*keepdim=*/true).to(at::kFloat);
  const Fp8Scale scale = reference::fp8_scale_of(largest, type);
  return {quantized(blocks, type, scale), scale.inverse.add_(largest.mul_(0))};  // infinity times 0 is NaN
}

/// Scales [outer, blocks] as cuBLAS reads those of 32 numbers (Fp8Matrix::inverse).
at::Tensor in_tiles_of_scales(const at::Tensor& inverse) {
  constexpr std::int64_t kRows = 128, kColumns = 4, kApart = 32;
  const at::Tensor whole =
      at::constant_pad_nd(inverse, {0, behind(inverse.size(1), kColumns), 0, behind(inverse.size(0), kRows)});
  return whole.view({-1, kRows / kApart, kApart, whole.size(1) / kColumns, kColumns})
      .permute({0, 3, 2, 1, 4})
      .to(at::kFloat8_e8m0fnu)
      .contiguous();
}

Fp8Matrix matrix_of_tiles(const at::Tensor& x, at::ScalarType type, Fp8Tile tile) {
  const bool turned = tile.along == Along::First;
  const auto [numbers, inverse] = fp8_in_blocks(x, type, tile);
  const auto rows = [&](const at::Tensor& t) {
    if (!turned) return t.reshape({-1, t.size(-1)});
    // [first, samples, last] to [last, samples x first]
    return t.reshape({t.size(0), -1, t.size(-1)}).permute({2, 1, 0}).reshape({t.size(-1), -1});
  };
  const at::Tensor scales = rows(inverse);
  return {rows(numbers).contiguous(), tile.size == 32 ? in_tiles_of_scales(scales) : scales.t().contiguous().t(), tile};
}

Fp8Matrix matrix_of_squares(const Fp8Blocks& blocks, Fp8Tile tile, bool turned) {
  const at::Tensor scales = turned ? blocks.inverse.t() : blocks.inverse;
  return {(turned ? blocks.numbers.t() : blocks.numbers).contiguous(),
          at::constant_pad_nd(scales, {0, behind(scales.size(1), 4)}).contiguous().t(), tile};
}

}  // namespace

Fp8Blocks fp8_in_blocks(const at::Tensor& x, at::ScalarType type, Fp8Tile tile) {
  const auto dimensions = cut_dimensions(x, tile.along);
  auto [numbers, inverse] = in_cut_blocks(x, type, dimensions, tile.size);
  for (const std::int64_t dimension : dimensions) inverse = inverse.squeeze(dimension + 1);
  return {joined(numbers, dimensions, x), inverse};
}

void check_fp8_matrices(const at::Tensor& x, std::int64_t size, bool squares, Fp8Wanted wanted) {
  const bool first = wanted.turned || squares, last = wanted.rows || squares;
  if ((squares && x.dim() != 2) || (first && x.size(0) % size != 0) || (last && x.size(-1) % size != 0))
    throw std::invalid_argument("fp8_matrices: whole blocks of what is cut");
}

namespace reference {

at::Tensor fp8_magnitude(const at::Tensor& x, const at::Tensor& seen) {
  if (x.numel() == 0) return at::zeros({}, x.options().dtype(at::kFloat));
  const auto [low, high] = at::aminmax(x.detach());
  const at::Tensor largest = at::maximum(high, low.neg()).to(at::kFloat);
  if (seen.defined()) seen.copy_(at::maximum(seen, largest));
  return largest;
}

// With x = m 2^e, 1 <= m < 2, and the largest numbers 1.75 2^8 and 1.75 2^15, the scale is 2 to the power 8 or 15 less
// e, and one less where m is above 1.75: then adding a quarter less the last place carries into float32's exponent.
Fp8Scale fp8_scale_of(const at::Tensor& amax, at::ScalarType type) {
  constexpr std::int64_t kMantissaBits = 23, kBias = 127, kMost = 126, kCarry = (1 << (kMantissaBits - 2)) - 1;
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor of_number = amax.nan_to_num(infinity, infinity);  // whose bits ATen's maxima leave open
  const at::Tensor above = of_number.view(at::kInt).add(kCarry).bitwise_right_shift(kMantissaBits);
  const at::Tensor exponent = at::rsub(above, 2 * kBias + std::ilogb(largest_of(type)));
  const at::Tensor bits = exponent.clamp_(kBias - kMost, kBias + kMost).bitwise_left_shift(kMantissaBits);
  const at::Tensor scale = bits.view(at::kFloat);
  return {scale, scale.reciprocal()};
}

Fp8Numbers fp8_numbers(const at::Tensor& x, at::ScalarType type, const Fp8Scale& scale, Fp8Wanted wanted,
                       const at::Tensor& seen) {
  note(x, seen);
  const at::Tensor numbers = quantized(x, type, scale);
  return {wanted.rows ? numbers : at::Tensor(),
          wanted.turned ? numbers.reshape({-1, numbers.size(-1)}).t().contiguous() : at::Tensor()};
}

at::Tensor fp8_rounded(const at::Tensor& x, at::ScalarType type, const Fp8Scale& scale, const at::Tensor& seen) {
  note(x, seen);
  return divided(quantized(x, type, scale), scale.inverse, x.scalar_type());
}

Fp8Matrices fp8_matrices(const at::Tensor& x, at::ScalarType type, std::int64_t size, bool squares, Fp8Wanted wanted) {
  check_fp8_matrices(x, size, squares, wanted);
  if (squares) {
    const Fp8Tile tile{Along::Both, size};
    const Fp8Blocks blocks = fp8_in_blocks(x, type, tile);
    return {wanted.rows ? matrix_of_squares(blocks, tile, false) : Fp8Matrix{},
            wanted.turned ? matrix_of_squares(blocks, tile, true) : Fp8Matrix{}};
  }
  return {wanted.rows ? matrix_of_tiles(x, type, {Along::Last, size}) : Fp8Matrix{},
          wanted.turned ? matrix_of_tiles(x, type, {Along::First, size}) : Fp8Matrix{}};
}

at::Tensor fp8_rounded_in_blocks(const at::Tensor& x, at::ScalarType type, Fp8Tile tile) {
  const auto dimensions = cut_dimensions(x, tile.along);
  const auto [numbers, inverse] = in_cut_blocks(x, type, dimensions, tile.size);
  return joined(divided(numbers, inverse, x.scalar_type()), dimensions, x);
}

}  // namespace reference
}  // namespace megatron::kernels
