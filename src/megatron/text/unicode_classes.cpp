#include "megatron/text/unicode_classes.h"

#include <cstddef>

namespace megatron::text {
namespace {

// Property White_Space, which has not changed since Unicode 6.3.
constexpr CodePointRange kSpaceRanges[] = {{0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                                           {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                           {0x205f, 0x205f}, {0x3000, 0x3000}};

}  // namespace

UnicodeClasses::UnicodeClasses() : packed_(0x110000 / 4) {
  const auto fill = [this](const auto& ranges, CharClass cls) {
    for (const CodePointRange& range : ranges)
      for (std::uint32_t c = range.first; c <= range.last; ++c)
        packed_[c >> 2] = static_cast<std::uint8_t>(packed_[c >> 2] | static_cast<unsigned>(cls) << (2 * (c & 3)));
  };
  fill(kLetterRanges, CharClass::Letter);
  fill(kNumberRanges, CharClass::Number);
  fill(kSpaceRanges, CharClass::Space);
}

const UnicodeClasses& UnicodeClasses::instance() {
  static const UnicodeClasses classes;
  return classes;
}

bool is_number_character(std::uint32_t code_point) {
  static constexpr CodePointRange kNewNumbers[] = {{0x11de0, 0x11de9}, {0x16ff4, 0x16ff6}};
  return UnicodeClasses::instance().of(code_point) == CharClass::Number || in_ranges(kNewNumbers, code_point);
}

DecodedChar decode_utf8(const char* p, const char* end) {
  const auto byte = [p](std::ptrdiff_t i) { return static_cast<unsigned char>(p[i]); };
  const std::ptrdiff_t available = end - p;
  const auto continues = [&](std::ptrdiff_t i) { return i < available && (byte(i) & 0xC0) == 0x80; };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
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
    if (static_cast<unsigned char>(*p) < 0x80) {
      ++p;
      continue;
    }
    const int length = decode_utf8(p, end).length;
    if (length == 0) return false;
    p += length;
  }
  return true;
}

void append_utf8(std::string& out, std::uint32_t c) {
  const auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

}  // namespace megatron::text
