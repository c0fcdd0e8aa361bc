#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "megatron/base/files/gguf.h"

namespace megatron::interchange {

/// The blocks that matrices are written and held in, by the names that options have for them.
inline constexpr std::pair<const char*, GgufType> kBlockTypes[] = {
    {"q8_0", GgufType::Q8_0}, {"q4_1", GgufType::Q4_1}, {"q4_0", GgufType::Q4_0}};

/// Numbers [begin, begin + count) of a row of blocks in a GGUF file, of any type that has blocks: each as the package
/// gguf dequantizes it (quants.py), to the bit.
void read_blocks(const std::byte* row, GgufType type, std::int64_t begin, std::int64_t count, float* to);

}  // namespace megatron::interchange
