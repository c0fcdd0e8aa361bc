#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "megatron/base/text/utf8.h"
#include "megatron/text/characters/unicode_ranges.h"

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

/// Whether Hugging Face tokenizers' pre-tokenizer Digits takes the character for a digit: those of CharClass::Number,
/// and the few that Unicode 17 added.
bool is_number_character(std::uint32_t code_point);

/// Whether one of `ranges`, which are in order, holds the code point.
template <std::size_t N>
bool in_ranges(const CodePointRange (&ranges)[N], std::uint32_t code_point) {
  const auto* found = std::lower_bound(std::begin(ranges), std::end(ranges), code_point,
                                       [](const CodePointRange& r, std::uint32_t c) { return r.last < c; });
  return found != std::end(ranges) && found->first <= code_point;
}

/// A set of code points that is asked for each character of a text: a bit each (136 KiB).
class CodePointSet {
 public:
  explicit CodePointSet(std::span<const CodePointRange> ranges) : bits_(0x110000 / 64) {
    for (const CodePointRange& range : ranges)
      for (std::uint32_t c = range.first; c <= range.last; ++c) add(c);
  }
  /// `code_point` must be below 0x110000.
  void add(std::uint32_t code_point) { bits_[code_point >> 6] |= std::uint64_t{1} << (code_point & 63); }
  bool has(std::uint32_t code_point) const { return (bits_[code_point >> 6] >> (code_point & 63) & 1) != 0; }

 private:
  std::vector<std::uint64_t> bits_;
};

}  // namespace megatron::text
