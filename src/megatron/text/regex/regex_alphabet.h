#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::text {

/// An expression over kinds of characters instead of characters. Those that no set of it tells apart are one kind, a
/// byte, so that each set is a few bytes: \p{L} has 650 ranges of code points, which PCRE2 would compare one after the
/// other for each character of a text. Most expressions have fewer than 20 kinds.
struct RegexAlphabet {
  std::string pattern;              ///< for PCRE2 without PCRE2_UTF
  std::vector<std::uint8_t> kinds;  ///< of each code point; '\n' is one of its own, 10
};

/// The alphabet of an expression that to_pcre2() wrote and PCRE2 compiles. None where only code points can say what it
/// means: a script, what is neither upper nor lower case outside of ASCII, or more than 256 kinds.
std::optional<RegexAlphabet> alphabet_of(std::string_view translated);

}  // namespace megatron::text
