#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/files/token_spellings.h"

namespace megatron::text {

/// One object of the file; knows its path in it, for messages.
class Component {
 public:
  Component(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) refuse("must be an object", shortened(object_));
  }

  /// Refuses members that are not in `known`: what is not understood could change the tokens.
  void know(std::initializer_list<const char*> known) const {
    for (const auto& [key, value] : object_.items())
      if (std::none_of(known.begin(), known.end(), [&key = key](const char* name) { return key == name; }))
        refuse("has a member that is not known", in_quotes(key));
  }

  /// The member, or null where it is missing.
  const nlohmann::json& get(const char* key) const {
    static const nlohmann::json kNull;
    const auto found = object_.find(key);
    return found == object_.end() ? kNull : *found;
  }

  bool has(const char* key) const { return !get(key).is_null(); }

  /// Its `type`, which must be a string.
  std::string type() const { return text("type"); }

  /// A component that this one holds.
  Component at(const char* key) const { return {get(key), concat(where_, where_.ends_with(": ") ? "" : ".", key)}; }
  Component at(const char* key, std::size_t index) const {
    return {get(key)[index], concat(where_, where_.ends_with(": ") ? "" : ".", key, "[", index, "]")};
  }

  std::string text(const char* key) const {
    if (!get(key).is_string()) refuse(concat(".", key, " must be a string"), shortened(get(key)));
    return get(key).get<std::string>();
  }

  bool boolean(const char* key, bool missing) const {
    const nlohmann::json& value = get(key);
    if (value.is_null()) return missing;
    if (!value.is_boolean()) refuse(concat(".", key, " must be true or false"), shortened(value));
    return value.get<bool>();
  }

  /// A whole number 0 … 2^31 - 1.
  std::int32_t number(const char* key) const {
    const nlohmann::json& value = get(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
      refuse(concat(".", key, " must be 0 or more"), shortened(value));
    return static_cast<std::int32_t>(value.get<std::uint64_t>());
  }

  /// A member that is an array; missing counts as empty.
  std::size_t array_size(const char* key) const {
    const nlohmann::json& value = get(key);
    if (!value.is_null() && !value.is_array()) refuse(concat(".", key, " must be an array"), shortened(value));
    return value.size();
  }

  /// Demands that a member is null, missing or equal to `neutral`.
  void must_be_neutral(const char* key, const nlohmann::json& neutral) const {
    const nlohmann::json& value = get(key);
    if (!value.is_null() && value != neutral)
      refuse(concat(".", key, " must be ", neutral.is_null() ? "null" : neutral.dump(), " (others are not supported)"),
             value.is_object() && value.contains("type") ? shortened(value["type"]) : shortened(value));
  }

  /// What messages call it.
  const std::string& path() const { return where_; }

  [[noreturn]] void refuse(const std::string& rule, const std::string& got) const {
    // "file: normalizer must …", "file: model.type must …", "file: model has …"
    const bool is_root = where_.ends_with(": ");
    const std::string_view name = is_root && rule.starts_with('.') ? std::string_view(rule).substr(1) : rule;
    throw ConfigError(rule_got_fix(concat(where_, is_root || rule.starts_with('.') ? "" : " ", name), got));
  }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace megatron::text
