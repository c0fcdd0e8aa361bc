#pragma once
#include <ATen/core/Tensor.h>

#include "megatron/kernels/cpu/elementwise/element_of.h"
#include "megatron/kernels/cpu/products/matrix.h"

// Tensors of two dimensions as the operands of matrix.h: float32, bf16 or fp16.
namespace megatron::kernels::cpu {

/// With a stride of 1 in one of the dimensions.
inline at::Tensor laid_out(const at::Tensor& x) { return x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous(); }

inline Matrix matrix(const at::Tensor& x) { return {x.const_data_ptr(), *element_of(x), x.stride(0), x.stride(1)}; }
inline MutableMatrix mutable_matrix(const at::Tensor& x) { return {x.mutable_data_ptr(), *element_of(x), x.stride(0)}; }

}  // namespace megatron::kernels::cpu
