#include "megatron/parallel/fp8/blocks.h"

#include <ATen/BlasBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm_v2.h>

#include <vector>

#include "megatron/plan/parameters/fp8.h"

namespace megatron::parallel {

using Along = Fp8Tile::Along;

namespace {

/// What each number of an operand is multiplied by, of float32: in its shape, or a scalar.
at::Tensor inverse_of(const Fp8Matrix& matrix) {
  const std::int64_t outer = matrix.numbers.size(0), inner = matrix.numbers.size(1), size = matrix.tile.size;
  if (matrix.inverse.dim() == 0) return matrix.inverse;
  at::Tensor scales = matrix.inverse;
  if (matrix.tile.along == Along::Both)
    scales = scales.t().repeat_interleave(size, 0);
  else if (size == plan::kMxBlock)  // tiles of [32, 4, 4]: rows one after the other, 32 apart, blocks
    scales = scales.to(at::kFloat).permute({0, 3, 2, 1, 4}).reshape({-1, scales.size(1) * scales.size(4)});
  return scales.narrow(0, 0, outer).repeat_interleave(size, 1).narrow(1, 0, inner);
}

}  // namespace

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

at::Tensor fp8_emulated_product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType dtype) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto read = [&](const Fp8Matrix& matrix) { return matrix.numbers.to(wide).mul_(inverse_of(matrix)); };
  return read(a).matmul(read(b).t()).to(dtype);
}

}  // namespace megatron::parallel
