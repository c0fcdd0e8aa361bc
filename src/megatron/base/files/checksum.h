#pragma once
#include <cstdint>
#include <string_view>

namespace megatron {

/// CRC-32C (Castagnoli) of the bytes: of TFRecord files.
std::uint32_t crc32c(std::string_view bytes);
/// CRC-32 of IEEE 802.3: zlib's.
std::uint32_t crc32(std::string_view bytes);

}  // namespace megatron
