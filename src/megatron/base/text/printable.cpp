#include "megatron/base/text/printable.h"

#include <cstdint>

#include "megatron/base/text/format.h"
#include "megatron/base/text/utf8.h"

namespace megatron {
namespace {

bool between(std::uint32_t value, std::uint32_t first, std::uint32_t last) { return value >= first && value <= last; }

/// C1 controls, the soft hyphen, marks of direction, separators of lines, the byte-order mark, tags.
bool is_invisible(std::uint32_t c) {
  return between(c, 0x80, 0x9F) || c == 0xAD || c == 0x61C || between(c, 0x200B, 0x200F) ||
         between(c, 0x2028, 0x202E) || between(c, 0x2060, 0x206F) || c == 0xFEFF || between(c, 0xFFF9, 0xFFFB) ||
         between(c, 0xE0000, 0xE0FFF);
}

std::string hex(std::uint32_t value, int digits) { return fmt::format("{:0{}x}", value, digits); }

std::string escaped(std::string_view text, bool keep_lines) {
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](const DecodedChar& c, std::size_t begin, std::size_t end) {
    const auto byte = static_cast<unsigned char>(text[begin]);
    if (c.length == 0)
      out += "\\x" + hex(byte, 2);
    else if (keep_lines && (byte == '\n' || byte == '\t'))
      out += text[begin];
    else if (byte == 0)
      out += "\\0";
    else if (byte == '\n')
      out += "\\n";
    else if (byte == '\t')
      out += "\\t";
    else if (byte == '\r')
      out += "\\r";
    else if (byte < 0x20 || byte == 0x7F)
      out += "\\x" + hex(byte, 2);
    else if (is_invisible(c.code_point))
      out += "\\u{" + hex(c.code_point, 1) + "}";
    else
      out += text.substr(begin, end - begin);
  });
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, false); }

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 60;
  return "\"" + printable(text.substr(0, kShown)) + (text.size() > kShown ? "…\"" : "\"");
}

std::string printable_lines(std::string_view text) { return escaped(text, true); }

void write_line(std::FILE* stream, std::string_view text) {
  const std::string line = printable_lines(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stream);
  std::fflush(stream);
}

}  // namespace megatron
