#pragma once
#include <cstddef>

#include "megatron/kernels/cpu/elementwise/element.h"

namespace megatron::kernels::cpu {

/// Turns the first 2 * half features of one head in place: cos and sin are of its position, `direction` 1 or -1.
void rotate_head(void* head, ElementType type, const float* cos, const float* sin, float direction, std::size_t half,
                 bool interleaved);

}  // namespace megatron::kernels::cpu
