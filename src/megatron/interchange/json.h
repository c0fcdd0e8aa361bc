#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace megatron::interchange {

/// The JSON object in `text`, which may be nested 32 deep. Throws ConfigError, naming `file` and where in it, for
/// anything else, also for a key that is given twice in the outermost object: the second would hide the first.
nlohmann::json parse_json_object(std::string_view text, const std::string& file);

}  // namespace megatron::interchange
