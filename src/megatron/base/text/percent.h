#pragma once
#include <string>
#include <string_view>

namespace megatron {

/// `text` of a URI with the byte in place of each %XX; a % that begins none stays.
std::string percent_decoded(std::string_view text);

}  // namespace megatron
