#pragma once
#include <simdjson.h>

#include <optional>
#include <string_view>

namespace megatron::data {

/// Parses a line of JSON that simdjson::SIMDJSON_PADDING readable bytes follow, of which nobody wants the numbers:
/// those that fit no 64 bits, as Python writes them, count as 0. What it gives lives until the parser is used again.
simdjson::error_code parse_json_line(simdjson::dom::parser& parser, std::string_view line,
                                     simdjson::dom::element& root);

/// The last member of this name, as in Python; nothing where there is none, or `value` is no object.
std::optional<simdjson::dom::element> last_member(simdjson::dom::element value, std::string_view name);

}  // namespace megatron::data
