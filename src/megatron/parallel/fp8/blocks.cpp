#include "megatron/parallel/fp8/blocks.h"

#include <ATen/BlasBackend.h>
#include <ATen/ops/_scaled_mm_v2.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/constant_pad_nd.h>

#include <stdexcept>
#include <vector>

#include "megatron/parallel/fp8.h"

namespace megatron::parallel {
namespace {

using Along = Fp8Tile::Along;

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

CutBlocks quantized(const at::Tensor& x, plan::Fp8Type type, const std::vector<std::int64_t>& dimensions,
                    std::int64_t size) {
  const at::Tensor blocks = cut(x.detach(), dimensions, size);
  std::vector<std::int64_t> within;  // each cut moves those behind it by one
  for (std::size_t i = 0; i < dimensions.size(); ++i)
    within.push_back(dimensions[i] + 1 + static_cast<std::int64_t>(i));
  const at::Tensor largest = at::amax(blocks.abs(), within, /*keepdim=*/true).to(at::kFloat);
  const Fp8Scale scale = fp8_scale_of(largest, type);
  return {fp8_quantized(blocks, type, scale), scale.inverse.add_(largest.mul_(0))};  // infinity times 0 is NaN
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

}  // namespace

at::Tensor by_columns(const at::Tensor& x) { return x.t().contiguous().t(); }

Fp8Blocks fp8_in_blocks(const at::Tensor& x, plan::Fp8Type type, Fp8Tile tile) {
  const auto dimensions = cut_dimensions(x, tile.along);
  auto [numbers, inverse] = quantized(x, type, dimensions, tile.size);
  for (const std::int64_t dimension : dimensions) inverse = inverse.squeeze(dimension + 1);
  return {joined(numbers, dimensions, x), inverse};
}

at::Tensor fp8_rounded_in_blocks(const at::Tensor& x, plan::Fp8Type type, Fp8Tile tile) {
  const auto dimensions = cut_dimensions(x, tile.along);
  const auto [numbers, inverse] = quantized(x, type, dimensions, tile.size);
  return joined(fp8_divided(numbers, {{}, inverse}, x.scalar_type()), dimensions, x);
}

Fp8Matrix fp8_matrix_of_tiles(const at::Tensor& x, plan::Fp8Type type, Fp8Tile tile) {
  const bool turned = tile.along == Along::First;
  if (tile.along == Along::Both || x.size(turned ? 0 : -1) % tile.size != 0)
    throw std::invalid_argument("fp8_matrix_of_tiles: whole tiles along one dimension");
  const auto [numbers, inverse] = fp8_in_blocks(x, type, tile);
  const auto rows = [&](const at::Tensor& t) {
    if (!turned) return t.reshape({-1, t.size(-1)});
    // [first, samples, last] to [last, samples x first]
    return t.reshape({t.size(0), -1, t.size(-1)}).permute({2, 1, 0}).reshape({t.size(-1), -1});
  };
  return {rows(numbers).contiguous(),
          tile.size == plan::kMxBlock ? in_tiles_of_scales(rows(inverse)) : by_columns(rows(inverse)), tile};
}

Fp8Matrix fp8_matrix_of_squares(const at::Tensor& w, plan::Fp8Type type, bool turned) {
  const Fp8Tile tile{Along::Both};
  const auto [numbers, inverse] = fp8_in_blocks(w, type, tile);
  const at::Tensor scales = turned ? inverse.t() : inverse;
  return {(turned ? numbers.t() : numbers).contiguous(),
          at::constant_pad_nd(scales, {0, behind(scales.size(1), 4)}).contiguous().t(), tile};
}

at::Tensor fp8_product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType dtype) {
  using at::blas::ScalingType, at::blas::SwizzleType;
  const auto scaling = [](Fp8Tile tile) {
    return static_cast<std::int64_t>(tile.along == Along::Both     ? ScalingType::BlockWise128x128
                                     : tile.size == plan::kMxBlock ? ScalingType::BlockWise1x32
                                                                   : ScalingType::BlockWise1x128);
  };
  std::vector<std::int64_t> swizzle;
  if (a.tile.size == plan::kMxBlock) swizzle = {static_cast<std::int64_t>(SwizzleType::SWIZZLE_32_4_4)};
  return at::_scaled_mm_v2(a.numbers, b.numbers.t(), {a.inverse}, scaling(a.tile), swizzle, {b.inverse},
                           scaling(b.tile), swizzle, {}, dtype);
}

}  // namespace megatron::parallel
