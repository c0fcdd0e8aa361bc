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

using plan::kFp8Block;

/// The dimensions of x that are cut, ascending.
std::vector<std::int64_t> cut_dimensions(const at::Tensor& x, Fp8Tile tile) {
  if (tile == Fp8Tile::Square) return {0, 1};
  return {tile == Fp8Tile::Tokens ? 0 : x.dim() - 1};
}

/// x, each of its `dimensions` cut into [blocks, 128], with zeros behind the last numbers.
at::Tensor cut(at::Tensor x, const std::vector<std::int64_t>& dimensions) {
  for (auto dimension = dimensions.rbegin(); dimension != dimensions.rend(); ++dimension) {
    const std::int64_t behind = (kFp8Block - x.size(*dimension) % kFp8Block) % kFp8Block;
    if (behind > 0) {
      std::vector<std::int64_t> sides(static_cast<std::size_t>(2 * (x.dim() - *dimension)), 0);
      sides.back() = behind;  // the last dimension's come first
      x = at::constant_pad_nd(x, sides);
    }
    x = x.unflatten(*dimension, {-1, kFp8Block});
  }
  return x;
}

/// What cut() made of a tensor like `x`, in its shape again.
at::Tensor joined(at::Tensor blocks, const std::vector<std::int64_t>& dimensions, const at::Tensor& x) {
  for (const std::int64_t dimension : dimensions)
    blocks = blocks.flatten(dimension, dimension + 1).narrow(dimension, 0, x.size(dimension));
  return blocks.contiguous();
}

/// Numbers and scales of x as cut() shapes them: of the scales each cut size 128 is 1.
struct CutBlocks {
  at::Tensor numbers, inverse;
};

CutBlocks quantized(const at::Tensor& x, plan::Fp8Type type, const std::vector<std::int64_t>& dimensions) {
  const at::Tensor blocks = cut(x.detach(), dimensions);
  std::vector<std::int64_t> within;  // each cut moves those behind it by one
  for (std::size_t i = 0; i < dimensions.size(); ++i)
    within.push_back(dimensions[i] + 1 + static_cast<std::int64_t>(i));
  const at::Tensor largest = at::amax(blocks.abs(), within, /*keepdim=*/true).to(at::kFloat);
  const Fp8Scale scale = fp8_scale_of(largest, type);
  return {fp8_quantized(blocks, type, scale), scale.inverse.add_(largest.mul_(0))};  // infinity times 0 is NaN
}

}  // namespace

at::Tensor by_columns(const at::Tensor& x) { return x.t().contiguous().t(); }

Fp8Blocks fp8_in_blocks(const at::Tensor& x, plan::Fp8Type type, Fp8Tile tile) {
  const auto dimensions = cut_dimensions(x, tile);
  auto [numbers, inverse] = quantized(x, type, dimensions);
  for (const std::int64_t dimension : dimensions) inverse = inverse.squeeze(dimension + 1);
  return {joined(numbers, dimensions, x), inverse};
}

at::Tensor fp8_rounded_in_blocks(const at::Tensor& x, plan::Fp8Type type, Fp8Tile tile) {
  const auto dimensions = cut_dimensions(x, tile);
  const auto [numbers, inverse] = quantized(x, type, dimensions);
  return joined(fp8_divided(numbers, {{}, inverse}, x.scalar_type()), dimensions, x);
}

Fp8Matrix fp8_matrix_of_features(const at::Tensor& x, plan::Fp8Type type) {
  const auto [numbers, inverse] = fp8_in_blocks(x, type, Fp8Tile::Features);
  return {numbers.reshape({-1, numbers.size(-1)}), by_columns(inverse.reshape({-1, inverse.size(-1)}))};
}

Fp8Matrix fp8_matrix_of_tokens(const at::Tensor& x, plan::Fp8Type type) {
  if (x.size(0) % kFp8Block != 0) throw std::invalid_argument("fp8_matrix_of_tokens: 128 must divide the tokens");
  const auto [numbers, inverse] = fp8_in_blocks(x, type, Fp8Tile::Tokens);
  const auto turned = [&](const at::Tensor& t) {  // [tokens, samples, outer] to [outer, samples x tokens]
    return t.reshape({t.size(0), -1, t.size(-1)}).permute({2, 1, 0}).reshape({t.size(-1), -1});
  };
  return {turned(numbers), by_columns(turned(inverse))};
}

Fp8Matrix fp8_matrix_of_weight(const at::Tensor& w, plan::Fp8Type type, bool turned) {
  const auto [numbers, inverse] = fp8_in_blocks(w, type, Fp8Tile::Square);
  const at::Tensor scales = turned ? inverse.t() : inverse;
  const std::int64_t behind = (4 - scales.size(1) % 4) % 4;
  return {(turned ? numbers.t() : numbers).contiguous(), at::constant_pad_nd(scales, {0, behind}).contiguous().t(),
          true};
}

at::Tensor fp8_product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType dtype) {
  using at::blas::ScalingType;
  const auto tiles = static_cast<std::int64_t>(ScalingType::BlockWise1x128),
             squares = static_cast<std::int64_t>(ScalingType::BlockWise128x128);
  return at::_scaled_mm_v2(a.numbers, b.numbers.t(), {a.inverse}, tiles, {}, {b.inverse}, b.square ? squares : tiles,
                           {}, {}, dtype);
}

}  // namespace megatron::parallel
