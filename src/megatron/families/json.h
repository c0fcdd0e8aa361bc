#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace megatron::families {

/// The JSON object in `text`. Throws ConfigError, naming `file` and where in it, for anything else and for the faults
/// that parse_json() finds (base/text/json.h).
nlohmann::json parse_json_object(std::string_view text, const std::string& file,
                                 const std::string& fix = "copy the file again from the model's folder");

}  // namespace megatron::families
