#pragma once
#include <cstddef>
#include <cstdint>

#include "megatron/base/files/gguf.h"

namespace megatron::interchange {

/// Numbers [begin, begin + count) of a row of blocks in a GGUF file, of any type that has blocks: each as the package
/// gguf dequantizes it (quants.py), to the bit.
void read_blocks(const std::byte* row, GgufType type, std::int64_t begin, std::int64_t count, float* to);

}  // namespace megatron::interchange
