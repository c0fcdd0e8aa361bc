#include "megatron/data/files/json_line.h"

#include <algorithm>
#include <string>

namespace megatron::data {
namespace {

bool is_json_digit(char c) { return c >= '0' && c <= '9'; }

/// Whether `text` is a number of JSON: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
bool is_json_number(std::string_view text) {
  const auto digits = [&] {
    const auto end = static_cast<std::size_t>(std::ranges::find_if_not(text, is_json_digit) - text.begin());
    text.remove_prefix(end);
    return end;
  };
  if (text.starts_with('-')) text.remove_prefix(1);
  const bool zero = text.starts_with('0');
  const std::size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) return false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (digits() == 0) return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
    if (digits() == 0) return false;
  }
  return text.empty();
}

/// Every number outside of strings becomes 0 and spaces; what is none stays for the parser to refuse.
void zero_numbers(std::string& json) {
  for (std::size_t at = 0; at < json.size(); ++at) {
    if (json[at] == '"') {
      for (++at; at < json.size() && json[at] != '"'; ++at)
        if (json[at] == '\\') ++at;
    } else if (is_json_digit(json[at]) || json[at] == '-') {
      const std::size_t end = std::min(json.find_first_not_of("0123456789+-.eE", at), json.size());
      if (is_json_number(std::string_view(json).substr(at, end - at))) {
        json.replace(at, end - at, end - at, ' ');
        json[at] = '0';
      }
      at = end - 1;
    }
  }
}

}  // namespace

simdjson::error_code parse_json_line(simdjson::dom::parser& parser, std::string_view line,
                                     simdjson::dom::element& root) {
  const auto error = parser.parse(line.data(), line.size(), /*realloc_if_needed=*/false).get(root);
  if (error == simdjson::SUCCESS || error == simdjson::DEPTH_ERROR || error == simdjson::MEMALLOC) return error;
  std::string without(line);
  zero_numbers(without);
  if (without == line) return error;
  return parser.parse(without).get(root);  // copies it
}

std::optional<simdjson::dom::element> last_member(simdjson::dom::element value, std::string_view name) {
  std::optional<simdjson::dom::element> found;
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return found;
  for (const auto field : object)
    if (field.key == name) found = field.value;
  return found;
}

}  // namespace megatron::data
