#pragma once
#include <c10/core/ScalarType.h>

#include <string>

namespace megatron::checkpoint {

/// safetensors' name of a dtype, "F32". Throws std::invalid_argument for one that it has none for.
std::string dtype_name(at::ScalarType type);

}  // namespace megatron::checkpoint
