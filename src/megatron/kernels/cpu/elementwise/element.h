#pragma once
#include <cstddef>

namespace megatron::kernels::cpu {

/// What is stored; the vector kernels compute in float32.
enum class ElementType { Float32, BFloat16, Float16 };

inline std::size_t element_size(ElementType type) { return type == ElementType::Float32 ? 4 : 2; }

}  // namespace megatron::kernels::cpu
