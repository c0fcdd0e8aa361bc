#pragma once
#include <simdjson.h>

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "megatron/base/collected_errors.h"
#include "megatron/base/error.h"

// JSON of others, taken apart with one clear message for what is wrong. The messages have no place: at_place() puts the
// file and the way to the value before them.
namespace megatron::tasks {

using JsonValue = simdjson::dom::element;
using JsonArray = simdjson::dom::array;

/// The value of a whole text; it lives as long as `parser`. Throws ConfigError for what is no JSON in UTF-8.
JsonValue parse_json(simdjson::dom::parser& parser, std::string_view text);

/// The member `key` of an object, if it is there. Throws ConfigError where `object` is none.
std::optional<JsonValue> find_member(const JsonValue& object, std::string_view key);

/// The value as a T: std::string_view, std::int64_t, bool or JsonArray. Throws ConfigError where it is something else.
template <class T>
T value_as(const JsonValue& value, std::string_view name) {
  T result{};
  if (value.get(result) == simdjson::SUCCESS) return result;
  const char* kind = std::is_same_v<T, bool>               ? "true or false"
                     : std::is_same_v<T, JsonArray>        ? "an array"
                     : std::is_same_v<T, std::string_view> ? "a text"
                                                           : "a whole number";
  throw ConfigError(rule_got_fix(concat("\"", name, "\" must be ", kind, "."), "another value"));
}

/// The member `key` of an object as a T. Throws ConfigError where it is missing or something else.
template <class T>
T member(const JsonValue& object, std::string_view key) {
  const std::optional<JsonValue> value = find_member(object, key);
  if (!value) throw ConfigError(rule_got_fix(concat("the object must have a \"", key, "\"."), "none"));
  return value_as<T>(*value, key);
}

/// Runs `work`, and puts the text that `place()` gives before the message of a ConfigError that it throws.
template <class Where, class Work>
void at_place(const Where& place, const Work& work) {
  try {
    with_fix("the file as it is published, whole; of your own files, correct this place", work);
  } catch (const ConfigError& error) {
    throw ConfigError(concat(place(), ": ", error.what()));
  }
}

}  // namespace megatron::tasks
