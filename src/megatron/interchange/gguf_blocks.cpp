#include "megatron/interchange/gguf_blocks.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
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

constexpr std::size_t kPiece = 32, kPieces = 8;
constexpr float kMostLevel = 15, kMostOf6Bits = 63;

/// Of a piece: x is about scale * level - least, both no less than 0.
struct PieceScale {
  float scale = 0, least = 0;
};

/// The level, 0 to 15, that stands for the number nearest to x.
int level_of(float x, const PieceScale& piece) {
  if (piece.scale == 0) return 0;
  return static_cast<int>(std::clamp(std::round((x + piece.least) / piece.scale), 0.0F, kMostLevel));
}

/// Numbers count by their magnitude and the root of the piece's mean square: small ones are not to vanish beside large.
PieceScale best_scale(std::span<const float, kPiece> x) {
  float low = 0, high = x[0];  // a block stores minus its least value, a number >= 0
  double squares = 0;
  for (const float value : x) {
    low = std::min(low, value);
    high = std::max(high, value);
    squares += static_cast<double>(value) * value;
  }
  if (high <= low) return {0, -low};
  const double mean = std::sqrt(squares / static_cast<double>(kPiece));
  PieceScale best{(high - low) / kMostLevel, -low};
  double least_error = std::numeric_limits<double>::infinity();
  constexpr int kRoundings = 21, kRounds = 2;
  PieceScale tried;
  for (int round = 0; round < kRoundings * kRounds; ++round) {
    const int rounding = round / kRounds;
    if (round % kRounds == 0) tried = {(high - low) / (kMostLevel - 1 + 0.1F * static_cast<float>(rounding)), -low};
    double w = 0, wl = 0, wll = 0, wx = 0, wlx = 0;
    std::array<double, kPiece> levels, weights;
    for (std::size_t i = 0; i < kPiece; ++i) {
      levels[i] = level_of(x[i], tried);
      weights[i] = mean + std::fabs(x[i]);
      w += weights[i];
      wl += weights[i] * levels[i];
      wll += weights[i] * levels[i] * levels[i];
      wx += weights[i] * x[i];
      wlx += weights[i] * levels[i] * x[i];
    }
    const double determinant = w * wll - wl * wl;
    if (determinant <= 0) continue;  // one level alone
    double scale = (w * wlx - wl * wx) / determinant, least = (wl * wlx - wll * wx) / determinant;
    if (least < 0) {
      least = 0;
      scale = wlx / wll;
    }
    if (scale <= 0) continue;
    double error = 0;
    for (std::size_t i = 0; i < kPiece; ++i) {
      const double off = scale * levels[i] - least - x[i];
      error += weights[i] * off * off;
    }
    tried = {static_cast<float>(scale), static_cast<float>(least)};
    if (error >= least_error) continue;
    least_error = error;
    best = tried;
  }
  return best;
}

float put_half(std::byte* at, float value, bool& finite) {
  const c10::Half half(value);
  finite = finite && std::isfinite(static_cast<float>(half));
  std::memcpy(at, &half.x, sizeof half.x);
  return static_cast<float>(half);
}

unsigned of_6_bits(float x, float scale) {
  return scale == 0 ? 0 : static_cast<unsigned>(std::clamp(std::round(x / scale), 0.0F, kMostOf6Bits));
}

}  // namespace

std::array<std::byte, 144> q4_k_block(std::span<const float, 256> x, bool& finite) {
  std::array<std::byte, 144> block = {};
  if (!std::ranges::all_of(x, [](float value) { return std::isfinite(value); })) {
    finite = false;
    return block;
  }
  std::array<PieceScale, kPieces> pieces;
  PieceScale largest;
  for (std::size_t j = 0; j < kPieces; ++j) {
    pieces[j] = best_scale(std::span<const float, kPiece>(x.data() + j * kPiece, kPiece));
    largest = {std::max(largest.scale, pieces[j].scale), std::max(largest.least, pieces[j].least)};
  }
  const float scale = put_half(block.data(), largest.scale / kMostOf6Bits, finite);
  const float least_scale = put_half(block.data() + 2, largest.least / kMostOf6Bits, finite);
  for (std::size_t j = 0; j < kPieces; ++j) {
    const unsigned scale_bits = of_6_bits(pieces[j].scale, scale), least_bits = of_6_bits(pieces[j].least, least_scale);
    std::byte* const packed = block.data() + 4 + j % 4;
    if (j < 4) {
      packed[0] |= static_cast<std::byte>(scale_bits);
      packed[4] |= static_cast<std::byte>(least_bits);
    } else {
      packed[0] |= static_cast<std::byte>((scale_bits & 48) << 2);
      packed[4] |= static_cast<std::byte>((least_bits & 48) << 2);
      packed[8] = static_cast<std::byte>((scale_bits & 15) | ((least_bits & 15) << 4));
    }
    const PieceScale own{scale * static_cast<float>(scale_bits), least_scale * static_cast<float>(least_bits)};
    for (std::size_t i = 0; i < kPiece; ++i) {
      const int level = level_of(x[j * kPiece + i], own);
      block[16 + j / 2 * kPiece + i] |= static_cast<std::byte>(j % 2 == 0 ? level : level << 4);
    }
  }
  return block;
}

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
