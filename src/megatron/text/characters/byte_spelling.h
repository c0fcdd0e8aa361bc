#pragma once
#include <string>
#include <string_view>

namespace megatron::text {

// Models that fall back to bytes have a token for each, spelled <0x00> … <0xFF>.

inline std::string byte_token(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
}

/// The byte that a token stands for, or -1. Digits above 9 may be small letters.
inline int spelled_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    const char low = static_cast<char>(c | 0x20);
    if (c >= '0' && c <= '9')
      byte = byte * 16 + (c - '0');
    else if (low >= 'a' && low <= 'f')
      byte = byte * 16 + (low - 'a' + 10);
    else
      return -1;
  }
  return byte;
}

}  // namespace megatron::text
