#include "megatron/base/text/percent.h"

namespace megatron {

std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string decoded;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool escape = text[at] == '%' && at + 2 < text.size() && digit(text[at + 1]) >= 0 && digit(text[at + 2]) >= 0;
    decoded += escape ? static_cast<char>(16 * digit(text[at + 1]) + digit(text[at + 2])) : text[at];
    if (escape) at += 2;
  }
  return decoded;
}

}  // namespace megatron
