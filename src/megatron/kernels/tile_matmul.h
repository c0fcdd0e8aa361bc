#pragma once
#include <ATen/core/Tensor.h>

#include "megatron/kernels/cpu/products/epilogue.h"

// Matrix products on the matrix unit (cpu/products/tile_product.h), as matmul.cpp uses them.
namespace megatron::kernels {

/// Whether a product of a [rows, ..] and b is computed there, on the CPU where there is such a unit: both bf16; both
/// float32 with precision "high" (runtime.h), or with "highest" where it is large enough. Of "highest" six products of
/// bf16 make up one that is as exact as one of float32 (tile_product.h).
bool on_tiles(const at::Tensor& a, const at::Tensor& b);
/// Whether a packed copy of such a weight may be kept from one product to the next.
bool keeps_packed(const at::Tensor& w);
/// Whether an operand of `lines` takes no more room, packed, than a product gives it: larger ones of float32 are cut,
/// those of an epilogue with two halves excepted.
bool fits_packed(at::ScalarType type, std::int64_t lines, std::int64_t depth);
/// The most words that an operand of float32 takes when it is packed for a product; one with larger operands is
/// computed in parts. For tests, which make it small; returns what it was.
std::size_t set_most_packed_words(std::size_t words);
/// The right operand b [depth, columns] as tiles want it; of float32 two or three parts.
at::Tensor pack_for_tiles(const at::Tensor& b);
/// c [rows, columns] = or += a [rows, depth] b [depth, columns]. Each operand has a stride of 1 in one dimension, c in
/// its last. `packed_b`: b as pack_for_tiles() gives it; undefined: threads pack what they read of it, while they read
/// it, or, of float32 with many rows or few columns, before. The left operand of float32 is always packed before. With
/// an epilogue nothing is added to, and a half of a gated unit must be whole panels of 32 columns. Throws
/// std::logic_error for float32 where on_tiles() never says so.
void tile_matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Tensor& packed_b,
                 bool accumulate, const cpu::Epilogue& epilogue = {});

}  // namespace megatron::kernels
