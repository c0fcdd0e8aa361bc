#pragma once
#include <ATen/core/Tensor.h>

#include "megatron/kernels/fp8/fp8.h"

// Numbers in 8 bits whose scales are those of blocks: of plan::Fp8Scales::Block (DeepSeek-AI 2024, section 3.3.2) and
// of plan::Fp8Scales::Mx (Rouhani et al. 2023, Microscaling Data Formats for Deep Learning).
namespace megatron::parallel {

using kernels::Fp8Matrices;
using kernels::Fp8Matrix;
using kernels::Fp8Tile;

/// a b^T [a's outer, b's outer] in `dtype`, bf16 or float32, sums in float32. Of tiles of one size, squares in b alone,
/// both E4M3: ATen takes no other. On a GPU that plan::require_fp8_units() lets pass.
at::Tensor fp8_product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType dtype);
/// a b^T [a's outer, b's outer] in `dtype`, of two operands whose inverses are scalars or lie as cuBLAS reads them,
/// multiplied as numbers of float32, or of float64 where `dtype` is that: what a GPU's units compute, but for the order
/// of sums.
at::Tensor fp8_emulated_product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType dtype);

}  // namespace megatron::parallel
