#pragma once
#include <cstdint>
#include <vector>

namespace megatron::text {

/// The classes of GPT-2's pre-tokenization: \p{L}, \p{N}, \s (White_Space), and the rest.
enum class CharClass : std::uint8_t { Other, Letter, Number, Space };

/// Class of every code point, two bits each (272 KiB), of Unicode 16.0 whatever the machine's libraries know.
class UnicodeClasses {
 public:
  /// The one table of the process, built at first use and constant from then on.
  static const UnicodeClasses& instance();

  /// `code_point` must be below 0x110000.
  CharClass of(std::uint32_t code_point) const {
    return static_cast<CharClass>(packed_[code_point >> 2] >> (2 * (code_point & 3)) & 3);
  }

 private:
  UnicodeClasses();
  std::vector<std::uint8_t> packed_;
};

/// One character decoded from bytes that need not be valid.
struct DecodedChar {
  std::uint32_t code_point = 0;
  int length = 0;  ///< Bytes, 1 … 4; 0 where the bytes do not begin with valid UTF-8.
};

/// Decodes the character at `p`, `p < end`. Overlong forms, surrogates and values above U+10FFFF are not valid.
DecodedChar decode_utf8(const char* p, const char* end);

}  // namespace megatron::text
