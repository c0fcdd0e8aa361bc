#include "megatron/base/text/utf8.h"

#include <cstring>

namespace megatron {

DecodedChar decode_wide_utf8(const char* p, const char* end) {
  const auto byte = [p](std::ptrdiff_t i) { return static_cast<unsigned char>(p[i]); };
  const std::ptrdiff_t available = end - p;
  const auto continues = [&](std::ptrdiff_t i) { return i < available && (byte(i) & 0xC0) == 0x80; };
  const std::uint32_t lead = byte(0);
  if (lead < 0xC2 || lead > 0xF4 || !continues(1)) return {};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  if (!continues(2)) return {};
  if (lead < 0xF0) {
    const std::uint32_t c = (lead & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
    return c < 0x800 || (c >= 0xD800 && c < 0xE000) ? DecodedChar{} : DecodedChar{c, 3};
  }
  if (!continues(3)) return {};
  const std::uint32_t c = (lead & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
  return c < 0x10000 || c > 0x10FFFF ? DecodedChar{} : DecodedChar{c, 4};
}

bool valid_utf8(std::string_view text) {
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    if (std::uint64_t eight = 0; end - p >= 8 && (std::memcpy(&eight, p, 8), (eight & 0x8080808080808080u) == 0)) {
      p += 8;
      continue;
    }
    const int length = decode_utf8(p, end).length;
    if (length == 0) return false;
    p += length;
  }
  return true;
}

void append_utf8(std::string& out, std::uint32_t c) {
  const auto tail = [c](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    const char bytes[] = {static_cast<char>(0xC0 | c >> 6), tail(0)};
    out.append(bytes, sizeof bytes);
  } else if (c < 0x10000) {
    const char bytes[] = {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
    out.append(bytes, sizeof bytes);
  } else {
    const char bytes[] = {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
    out.append(bytes, sizeof bytes);
  }
}

}  // namespace megatron
