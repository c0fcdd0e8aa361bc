#pragma once
#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/text/chat/value.h"

// Jinja's operators, tests and filters. All throw JinjaRefusal for what is not known here.
namespace megatron::text {

/// Arguments of a filter, a test or a function: those without a name, then those with one.
class JinjaArguments {
 public:
  /// `name`: of the filter, test or function; `names`: of each value, or "".
  JinjaArguments(std::string name, std::vector<std::string> names, JinjaValue::Items values)
      : name_(std::move(name)), names_(std::move(names)), values_(std::move(values)) {}

  std::size_t count() const { return values_.size(); }
  const JinjaValue::Items& all() const { return values_; }
  const std::vector<std::string>& names() const { return names_; }

  bool has_names() const {
    return std::ranges::any_of(names_, [](const std::string& name) { return !name.empty(); });
  }

  /// The argument of this place or name; nothing where it is not given.
  std::optional<JinjaValue> get(std::size_t place, const std::string& name) {
    for (std::size_t i = 0; i < values_.size(); ++i)
      if (names_[i].empty() ? i == place : names_[i] == name) {
        ++used_;
        return values_[i];
      }
    return std::nullopt;
  }
  JinjaValue must(std::size_t place, const std::string& name);
  bool flag(std::size_t place, const std::string& name, bool otherwise) {
    const auto value = get(place, name);
    return value ? value->truth() : otherwise;
  }
  /// After all that are known have been asked for.
  void must_be_used() const;

 private:
  std::string name_;
  std::vector<std::string> names_;
  JinjaValue::Items values_;
  std::size_t used_ = 0;
};

/// left SIGN right, of + - ~ * / // % **
JinjaValue jinja_sum(const JinjaValue& left, std::string_view sign, const JinjaValue& right, JinjaBudget& budget);

/// left SIGN right, of == != < > <= >= in, not in
bool jinja_compared(const JinjaValue& left, std::string_view sign, const JinjaValue& right, JinjaBudget& budget);

/// value is name(arguments …)
bool jinja_tested(const JinjaValue& value, const std::string& name, JinjaArguments& arguments, JinjaBudget& budget);

/// value | name(arguments …)
JinjaValue jinja_filtered(const JinjaValue& value, const std::string& name, JinjaArguments& arguments,
                          JinjaBudget& budget);

/// What a loop over the value gives.
JinjaValue::Items jinja_items(const JinjaValue& value, std::string_view of, JinjaBudget& budget);

/// Whether it is one of `names`.
bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names);

}  // namespace megatron::text
