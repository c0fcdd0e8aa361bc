#include "megatron/families/json_fields.h"

#include <cmath>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"

namespace megatron::families {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxShown = 200;  // characters of a value in a message
constexpr std::size_t kMostFieldsShown = 10;

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "…";
  return printable(text);
}

}  // namespace

bool JsonFields::has(const std::string& key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

const json& JsonFields::value(const std::string& key) {
  static const json null;
  known_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() ? null : *found;
}

void JsonFields::refuse(const std::string& key, const std::string& rule) const {
  const auto found = object_.find(key);
  throw ConfigError(rule_got_fix(concat(file_, ": \"", prefix_, key, "\" must be ", rule, "."),
                                 found == object_.end() ? "no such field" : shown(*found)));
}

std::int64_t JsonFields::size(const std::string& key, std::int64_t most) {
  const json& field = value(key);
  if (!field.is_number_unsigned() || field.get<std::uint64_t>() < 1 ||
      field.get<std::uint64_t>() > static_cast<std::uint64_t>(most))
    refuse(key, concat("a whole number from 1 to ", most));
  return field.get<std::int64_t>();
}

std::int64_t JsonFields::size(const std::string& key, std::int64_t most, std::int64_t otherwise) {
  known_.insert(key);
  return has(key) ? size(key, most) : otherwise;
}

double JsonFields::number(const std::string& key, double otherwise) {
  const json& field = value(key);
  if (field.is_null()) return otherwise;
  if (!field.is_number() || !std::isfinite(field.get<double>())) refuse(key, "a number");
  return field.get<double>();
}

bool JsonFields::flag(const std::string& key, bool otherwise) {
  const json& field = value(key);
  if (field.is_null()) return otherwise;
  if (!field.is_boolean()) refuse(key, "true or false");
  return field.get<bool>();
}

std::string JsonFields::text(const std::string& key, const std::string& otherwise) {
  const json& field = value(key);
  if (field.is_null()) return otherwise;
  if (!field.is_string()) refuse(key, "a text");
  return field.get<std::string>();
}

void JsonFields::must_be(const std::string& key, const json& expected) {
  const json& field = value(key);
  if (!field.is_null() && field != expected) refuse(key, concat(shown(expected), ", the only value computed here"));
}

void JsonFields::ignore(std::initializer_list<const char*> keys) {
  for (const char* key : keys) known_.insert(key);
}

void JsonFields::finish() const {
  std::string unknown;
  std::size_t count = 0;
  for (const auto& [key, field] : object_.items()) {
    if (field.is_null() || known_.contains(key) || ++count > kMostFieldsShown) continue;
    unknown += concat(unknown.empty() ? "" : ", ", "\"", prefix_, printable(key), "\": ", shown(field));
  }
  if (count > kMostFieldsShown) unknown += concat(" and ", count - kMostFieldsShown, " more");
  if (!unknown.empty())
    throw ConfigError(rule_got_fix(concat(file_, ": every field must be known here, as it may change the results."),
                                   unknown, "remove the fields if they do not change the model"));
}

}  // namespace megatron::families
