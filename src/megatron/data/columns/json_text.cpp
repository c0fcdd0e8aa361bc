#include "megatron/data/columns/json_text.h"

#include <simdjson.h>

#include <charconv>
#include <cmath>

namespace megatron::data {
namespace {

template <class T>
void append_number(T value, std::string& out) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out.append(text, end);
}

template <class T>
void append_real(T value, std::string& out) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  append_number(value, out);
}

}  // namespace

void append_json_string(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  std::size_t plain = 0;  // from here on nothing was appended yet
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text, plain, i - plain);
    plain = i + 1;
    switch (byte) {
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      default:
        ((out += "\\u00") += kHex[byte >> 4]) += kHex[byte & 15];
    }
  }
  out.append(text, plain);
  out += '"';
}

void append_json_bytes(std::string_view text, std::string& out) {
  if (simdjson::validate_utf8(text.data(), text.size()))
    append_json_string(text, out);
  else
    out += "null";
}

void append_json_number(std::int64_t value, std::string& out) { append_number(value, out); }
void append_json_number(std::uint64_t value, std::string& out) { append_number(value, out); }
void append_json_number(double value, std::string& out) { append_real(value, out); }
void append_json_number(float value, std::string& out) { append_real(value, out); }

}  // namespace megatron::data
