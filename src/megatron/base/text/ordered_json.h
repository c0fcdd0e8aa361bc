#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace megatron {

/// The value of a text that parse_json() takes, the keys of each object in the order in which they are written. Takes
/// time quadratic in the keys of an object: of a text from outside, the caller bounds them.
nlohmann::ordered_json parse_ordered_json(std::string_view text);

}  // namespace megatron
