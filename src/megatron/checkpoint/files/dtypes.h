#pragma once
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <string>

namespace megatron::checkpoint {

/// safetensors' name of a dtype, "F32". Throws std::invalid_argument for one that it has none for.
std::string dtype_name(at::ScalarType type);

/// The dtype that safetensors calls `name`. Throws std::invalid_argument for one that torch has none for.
at::ScalarType dtype_of(const std::string& name);

/// Whether convert() knows both: F64, F32, F16 and BF16 become one another; anything becomes itself.
bool converts(const std::string& from, const std::string& to);

/// `count` elements, rounded to nearest. Both are aligned for their dtypes and do not overlap.
void convert(const std::string& from, const std::byte* source, const std::string& to, std::byte* target,
             std::size_t count);

}  // namespace megatron::checkpoint
