#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "megatron/kernels/cpu/elementwise/element.h"

namespace megatron::kernels::cpu {

/// What the vector kernels call the tensor's dtype; none: they do not take it.
inline std::optional<ElementType> element_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return ElementType::Float32;
    case at::kBFloat16:
      return ElementType::BFloat16;
    case at::kHalf:
      return ElementType::Float16;
    default:
      return std::nullopt;
  }
}

}  // namespace megatron::kernels::cpu
