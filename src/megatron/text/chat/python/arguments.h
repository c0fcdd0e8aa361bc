#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/text/chat/python/value.h"

namespace megatron::text {

/// Whether it is one of `names`.
bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names);

/// Arguments of a filter, a test, a method or a function: those without a name, then those with one.
class JinjaArguments {
 public:
  /// `name`: of the filter, test, method or function; `names`: of each value, or "".
  JinjaArguments(std::string name, std::vector<std::string> names, JinjaValue::Items values)
      : name_(std::move(name)), names_(std::move(names)), values_(std::move(values)) {}

  std::size_t count() const { return values_.size(); }
  const JinjaValue::Items& all() const { return values_; }
  const std::vector<std::string>& names() const { return names_; }
  bool has_names() const;

  /// The argument of this place or name; nothing where it is not given.
  std::optional<JinjaValue> get(std::size_t place, const std::string& name);
  /// get(); nothing where it is none.
  std::optional<JinjaValue> get_some(std::size_t place, const std::string& name);
  /// Throws JinjaRefusal where it is not given.
  JinjaValue must(std::size_t place, const std::string& name);
  bool flag(std::size_t place, const std::string& name, bool otherwise);
  std::int64_t integer(std::size_t place, const std::string& name, std::int64_t otherwise);

  /// All; throws JinjaRefusal where one has a name.
  JinjaValue::Items rest();
  void use_all() { used_ = values_.size(); }
  /// After all that are known have been asked for. Throws JinjaRefusal where there are others.
  void must_be_used() const;

 private:
  std::string name_;
  std::vector<std::string> names_;
  JinjaValue::Items values_;
  std::size_t used_ = 0;
};

}  // namespace megatron::text
