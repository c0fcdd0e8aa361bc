#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "megatron/base/files/gguf.h"

namespace megatron::interchange {

/// 256 numbers as a block of Q4_K, 144 bytes. `finite` becomes false where a number is inf or NaN, or a scale overflows
/// half precision. Each piece of 32 has the scale and the least value with the smallest weighted squared error among 21
/// roundings, each improved by least squares; both are then put into 6 bits, and levels are the nearest to what those
/// stand for.
std::array<std::byte, 144> q4_k_block(std::span<const float, 256> x, bool& finite);

/// Numbers [begin, begin + count) of a row of blocks in a GGUF file, of any type that has blocks: each as the package
/// gguf dequantizes it (quants.py), to the bit.
void read_blocks(const std::byte* row, GgufType type, std::int64_t begin, std::int64_t count, float* to);

}  // namespace megatron::interchange
