#include "megatron/tasks/published/json_input.h"

namespace megatron::tasks {

JsonValue parse_json(simdjson::dom::parser& parser, std::string_view text) {
  JsonValue value;
  if (const auto error = parser.parse(text.data(), text.size()).get(value); error != simdjson::SUCCESS)
    throw ConfigError(rule_got_fix("the text must be JSON in UTF-8.", simdjson::error_message(error)));
  return value;
}

std::optional<JsonValue> find_member(const JsonValue& object, std::string_view key) {
  simdjson::dom::object members;
  if (object.get(members) != simdjson::SUCCESS)
    throw ConfigError(rule_got_fix(concat("an object with a \"", key, "\" must stand here."), "another value"));
  std::optional<JsonValue> found;
  for (const auto field : members)
    if (field.key == key) found = field.value;  // the last, as Python has it
  return found;
}

}  // namespace megatron::tasks
