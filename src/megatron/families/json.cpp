#include "megatron/families/json.h"

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"

namespace megatron::families {

nlohmann::json parse_json_object(std::string_view text, const std::string& file, const std::string& fix) {
  std::string got = "another JSON value";
  try {
    nlohmann::json object = parse_json(text);
    if (object.is_object()) return object;
  } catch (const JsonError& error) {
    got = error.what();
  }
  throw ConfigError(rule_got_fix(concat(file, ": must be a JSON object."), got, fix));
}

}  // namespace megatron::families
