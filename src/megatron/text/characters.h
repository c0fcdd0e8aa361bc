#pragma once
#include <algorithm>
#include <cstddef>
#include <string_view>

#include "megatron/text/unicode_classes.h"

namespace megatron::text {

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

}  // namespace megatron::text
