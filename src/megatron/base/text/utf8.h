#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace megatron {

/// One character decoded from bytes that need not be valid.
struct DecodedChar {
  std::uint32_t code_point = 0;
  int length = 0;  ///< Bytes, 1 … 4; 0 where the bytes do not begin with valid UTF-8.
};

/// Decodes the character at `p`, `p < end`, which is not ASCII.
DecodedChar decode_wide_utf8(const char* p, const char* end);

/// Decodes the character at `p`, `p < end`. Overlong forms, surrogates and values above U+10FFFF are not valid.
inline DecodedChar decode_utf8(const char* p, const char* end) {
  const auto lead = static_cast<unsigned char>(*p);
  return lead < 0x80 ? DecodedChar{lead, 1} : decode_wide_utf8(p, end);
}

/// Whether all of `text` is valid UTF-8.
bool valid_utf8(std::string_view text);

/// Appends the character in UTF-8.
void append_utf8(std::string& out, std::uint32_t code_point);

/// Calls `take(character, begin, end)` for each character of `text`; a byte that is no UTF-8 is one of length 0.
template <class Take>
void for_each_character(std::string_view text, const Take& take) {
  const char* const end = text.data() + text.size();
  for (std::size_t at = 0; at < text.size();) {
    const DecodedChar c = decode_utf8(text.data() + at, end);
    const std::size_t after = at + static_cast<std::size_t>(std::max(c.length, 1));
    take(c, at, after);
    at = after;
  }
}

}  // namespace megatron
