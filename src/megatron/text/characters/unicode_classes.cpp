#include "megatron/text/characters/unicode_classes.h"

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

}  // namespace megatron::text
