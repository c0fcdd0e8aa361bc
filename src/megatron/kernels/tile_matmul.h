#pragma once
#include <ATen/core/Tensor.h>

#include "megatron/kernels/cpu/products/epilogue.h"

// Matrix products on the matrix unit (cpu/products/tile_product.h), as matmul.cpp uses them.
namespace megatron::kernels {

/// Whether the product of a and b is computed there: both bf16, or both float32 with precision "high" (runtime.h), on
/// the CPU, and there is such a unit.
bool on_tiles(const at::Tensor& a, const at::Tensor& b);
/// The right operand b [depth, columns] as tiles want it; of float32 two parts, high before low.
at::Tensor pack_for_tiles(const at::Tensor& b);
/// c [rows, columns] = or += a [rows, depth] b [depth, columns]. Each operand has a stride of 1 in one dimension, c in
/// its last. `packed_b`: b as pack_for_tiles() gives it; undefined: threads pack what they read of it, while they read
/// it. With an epilogue nothing is added to, and a half of a gated unit must be whole panels of 32 columns.
void tile_matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Tensor& packed_b,
                 bool accumulate, const cpu::Epilogue& epilogue = {});

}  // namespace megatron::kernels
