#include "megatron/base/files/checksum.h"

#include <array>

namespace megatron {
namespace {

/// By byte, for a polynomial whose bits are reversed.
constexpr std::array<std::uint32_t, 256> table_of(std::uint32_t polynomial) {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? polynomial : 0);
    table[byte] = rest;
  }
  return table;
}

std::uint32_t checksum(const std::array<std::uint32_t, 256>& table, std::string_view bytes) {
  std::uint32_t rest = 0xFFFFFFFFU;
  for (const char c : bytes) rest = (rest >> 8) ^ table[(rest ^ static_cast<unsigned char>(c)) & 0xFFU];
  return ~rest;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = table_of(0x82F63B78U);
  return checksum(kTable, bytes);
}

std::uint32_t crc32(std::string_view bytes) {
  static constexpr auto kTable = table_of(0xEDB88320U);
  return checksum(kTable, bytes);
}

}  // namespace megatron
