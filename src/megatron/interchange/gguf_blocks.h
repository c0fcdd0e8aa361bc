#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "megatron/base/files/gguf.h"

namespace megatron::interchange {

/// The blocks that matrices are written and held in, by the names that options have for them.
inline constexpr std::pair<const char*, GgufType> kBlockTypes[] = {
    {"q8_0", GgufType::Q8_0}, {"q4_1", GgufType::Q4_1}, {"q4_0", GgufType::Q4_0}};

/// What a GGUF file may be written in besides, for other programs: llama.cpp's pieces of 32 whose scales share one.
inline constexpr std::pair<const char*, GgufType> kBlocksOf256 = {"q4_k", GgufType::Q4_K};

/// 256 numbers as a block of Q4_K, 144 bytes. `finite` becomes false where a number is inf or NaN, or a scale overflows
/// half precision. Each piece of 32 has the scale and the least value with the smallest weighted squared error among 21
/// roundings, each improved by least squares; both are then put into 6 bits, and levels are the nearest to what those
/// stand for.
std::array<std::byte, 144> q4_k_block(std::span<const float, 256> x, bool& finite);

/// Numbers [begin, begin + count) of a row of blocks in a GGUF file, of any type that has blocks: each as the package
/// gguf dequantizes it (quants.py), to the bit.
void read_blocks(const std::byte* row, GgufType type, std::int64_t begin, std::int64_t count, float* to);

}  // namespace megatron::interchange
