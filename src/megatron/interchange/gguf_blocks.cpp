#include "megatron/interchange/gguf_blocks.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace megatron::interchange {
namespace {

constexpr std::size_t kMostNumbers = 256;  // of a block
using Numbers = std::array<float, kMostNumbers>;

float half_at(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
}

unsigned byte_at(const std::byte* at) { return static_cast<unsigned>(*at); }

/// Blocks of 32: a scale, of Q4_1 and Q5_1 also a least value, of Q5 the fifth bits of all levels, and their lower
/// four: those of the first 16 in the lower halves of the bytes.
void read_block_of_32(const std::byte* block, GgufType type, Numbers& to) {
  const float scale = half_at(block);
  if (type == GgufType::Q8_0) {
    for (std::size_t i = 0; i < 32; ++i) to[i] = scale * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
    return;
  }
  const bool above_least = type == GgufType::Q4_1 || type == GgufType::Q5_1;
  const bool five = type == GgufType::Q5_0 || type == GgufType::Q5_1;
  const float least = above_least ? half_at(block + 2) : 0;
  const std::byte* rest = block + (above_least ? 4 : 2);
  std::uint32_t fifth = 0;
  if (five) {
    std::memcpy(&fifth, rest, sizeof fifth);
    rest += sizeof fifth;
  }
  for (std::size_t i = 0; i < 32; ++i) {
    const unsigned low = i < 16 ? byte_at(rest + i) & 15 : byte_at(rest + i - 16) >> 4;
    const auto level = static_cast<int>(low | (((fifth >> i) & 1) << 4));
    to[i] =
        above_least ? scale * static_cast<float>(level) + least : scale * static_cast<float>(level - (five ? 16 : 8));
  }
}

/// Of Q4_K and Q5_K, pieces of 32: a scale and a scale of least values, 6 bits of both for each of 8 pieces, of Q5_K
/// the fifth bits, bit j of byte i being that of number i of piece j, and the lower four: two pieces in 32 bytes.
void read_block_of_8_pieces(const std::byte* block, bool five, Numbers& to) {
  const float scale = half_at(block), least_scale = half_at(block + 2);
  const std::byte *const packed = block + 4, *const fifth = packed + 12, *const low = fifth + (five ? 32 : 0);
  for (std::size_t j = 0; j < 8; ++j) {
    const std::size_t k = j % 4;
    const unsigned a = byte_at(packed + k), b = byte_at(packed + 4 + k), c = byte_at(packed + 8 + k);
    const unsigned scale_bits = j < 4 ? a & 63 : (c & 15) | ((a >> 2) & 48);
    const unsigned least_bits = j < 4 ? b & 63 : (c >> 4) | ((b >> 2) & 48);
    const float own = scale * static_cast<float>(scale_bits), least = least_scale * static_cast<float>(least_bits);
    for (std::size_t i = 0; i < 32; ++i) {
      const unsigned both = byte_at(low + j / 2 * 32 + i), upper = five ? (byte_at(fifth + i) >> j) & 1 : 0;
      const unsigned level = (j % 2 == 0 ? both & 15 : both >> 4) | (upper << 4);
      to[j * 32 + i] = own * static_cast<float>(level) - least;
    }
  }
}

/// Of Q6_K, two halves of 128: the lower four bits of 64 numbers in the lower halves of 64 bytes, those of the next in
/// the upper ones; the upper two bits of 32 numbers in bits 0 and 1 of 32 bytes, of the next in bits 2 and 3, and so
/// on; then a signed scale for each 16, and the scale of these.
void read_q6_k(const std::byte* block, Numbers& to) {
  const std::byte *const upper = block + 128, *const scales = upper + 64;
  const float scale = half_at(scales + 16);
  for (std::size_t i = 0; i < 256; ++i) {
    const std::size_t half = i / 128, within = i % 128;
    const unsigned both = byte_at(block + half * 64 + within % 64);
    const unsigned low = within < 64 ? both & 15 : both >> 4;
    const unsigned high = (byte_at(upper + half * 32 + within % 32) >> (within / 32 * 2)) & 3;
    const float own = scale * static_cast<float>(static_cast<std::int8_t>(scales[i / 16]));
    to[i] = own * static_cast<float>(static_cast<int>(low | (high << 4)) - 32);
  }
}

void read_block(const std::byte* block, GgufType type, Numbers& to) {
  switch (type) {
    case GgufType::Q4_K:
    case GgufType::Q5_K:
      return read_block_of_8_pieces(block, type == GgufType::Q5_K, to);
    case GgufType::Q6_K:
      return read_q6_k(block, to);
    default:
      return read_block_of_32(block, type, to);
  }
}

}  // namespace

void read_blocks(const std::byte* row, GgufType type, std::int64_t begin, std::int64_t count, float* to) {
  const auto [numbers, bytes] = gguf_block(type);
  Numbers block;
  for (std::int64_t at = begin; at < begin + count;) {
    const std::int64_t within = at % numbers, taken = std::min(numbers - within, begin + count - at);
    read_block(row + at / numbers * bytes, type, block);
    to = std::copy_n(block.data() + within, taken, to);
    at += taken;
  }
}

}  // namespace megatron::interchange
