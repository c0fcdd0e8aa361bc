#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace megatron {

/// Code points of Unicode as ranges with both ends in them: in order, none next to another.
using CodePoints = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

inline constexpr std::uint32_t kLastCodePoint = 0x10FFFF;

/// Puts ranges in order and joins those that overlap or touch.
CodePoints in_order(CodePoints ranges);

/// All other code points.
CodePoints complement(const CodePoints& ranges);

}  // namespace megatron
