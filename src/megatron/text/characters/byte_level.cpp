#include "megatron/text/characters/byte_level.h"

#include <array>
#include <cstdint>
#include <cstdio>

#include "megatron/text/characters/unicode_classes.h"

namespace megatron::text {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<std::uint16_t, 256> make_code_points() {
  std::array<std::uint16_t, 256> points{};
  std::uint16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    points[static_cast<std::size_t>(byte)] = stands_for_itself(byte) ? static_cast<std::uint16_t>(byte) : next++;
  return points;
}
constexpr auto kCodePoints = make_code_points();

constexpr std::array<std::int16_t, 0x144> make_bytes() {
  std::array<std::int16_t, 0x144> bytes{};
  for (auto& byte : bytes) byte = -1;
  for (std::size_t byte = 0; byte < 256; ++byte) bytes[kCodePoints[byte]] = static_cast<std::int16_t>(byte);
  return bytes;
}
constexpr auto kBytes = make_bytes();

}  // namespace

std::string to_byte_level(std::string_view bytes) {
  std::string spelling;
  for (const char c : bytes) {
    const unsigned point = kCodePoints[static_cast<unsigned char>(c)];
    if (point < 0x80) {
      spelling.push_back(static_cast<char>(point));
    } else {
      spelling.push_back(static_cast<char>(0xC0 | point >> 6));
      spelling.push_back(static_cast<char>(0x80 | (point & 0x3F)));
    }
  }
  return spelling;
}

bool from_byte_level(std::string_view spelling, std::string& bytes) {
  bytes.clear();
  const char* end = spelling.data() + spelling.size();
  for (const char* p = spelling.data(); p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    if (c.length == 0 || c.code_point >= kBytes.size() || kBytes[c.code_point] < 0) return false;
    bytes.push_back(static_cast<char>(kBytes[c.code_point]));
    p += c.length;
  }
  return true;
}

char32_t byte_level_code_point(unsigned char byte) { return kCodePoints[byte]; }

}  // namespace megatron::text
