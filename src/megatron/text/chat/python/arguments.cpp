#include "megatron/text/chat/python/arguments.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron::text {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

bool JinjaArguments::has_names() const {
  return std::ranges::any_of(names_, [](const std::string& name) { return !name.empty(); });
}

std::optional<JinjaValue> JinjaArguments::get(std::size_t place, const std::string& name) {
  for (std::size_t i = 0; i < values_.size(); ++i)
    if (names_[i].empty() ? i == place : names_[i] == name) {
      ++used_;
      return values_[i];
    }
  return std::nullopt;
}

std::optional<JinjaValue> JinjaArguments::get_some(std::size_t place, const std::string& name) {
  auto value = get(place, name);
  if (value && value->is(JinjaValue::Kind::None)) return std::nullopt;
  return value;
}

JinjaValue JinjaArguments::must(std::size_t place, const std::string& name) {
  auto value = get(place, name);
  if (!value) throw JinjaRefusal(concat("\"", name_, "\" without ", name));
  return *value;
}

bool JinjaArguments::flag(std::size_t place, const std::string& name, bool otherwise) {
  const auto value = get(place, name);
  return value ? value->truth() : otherwise;
}

std::int64_t JinjaArguments::integer(std::size_t place, const std::string& name, std::int64_t otherwise) {
  const auto value = get(place, name);
  return value ? value->integer(name_) : otherwise;
}

JinjaValue::Items JinjaArguments::rest() {
  if (has_names()) throw JinjaRefusal(concat("named arguments of \"", name_, "\""));
  use_all();
  return values_;
}

void JinjaArguments::must_be_used() const {
  if (used_ != values_.size()) throw JinjaRefusal(concat("\"", name_, "\" with the arguments it has here"));
}

}  // namespace megatron::text
