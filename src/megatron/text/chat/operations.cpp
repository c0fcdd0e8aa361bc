#include "megatron/text/chat/operations.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>

#include "megatron/base/error.h"
#include "megatron/text/chat/filters.h"
#include "megatron/text/chat/python/formats.h"
#include "megatron/text/chat/python/letter_case.h"
#include "megatron/text/chat/python/methods.h"
#include "megatron/text/chat/python/numbers.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = JinjaValue::Kind;
using Items = JinjaValue::Items;

[[noreturn]] void refuse_operation(const std::string& what) { throw JinjaRefusal(what); }

/// Two texts as one. One that the filter "safe" went over has the other escaped, as Python's Markup has it.
Value added_texts(const Value& left, const Value& right, JinjaBudget& budget) {
  const bool safe = left.is_safe() || right.is_safe();
  const auto part = [&](const Value& value) {
    return safe && !value.is_safe() ? escaped(value.text("")) : value.text("");
  };
  const std::string a = part(left), b = part(right);
  budget.make(a.size() + b.size());
  return safe ? Value::safe(a + b) : Value(a + b);
}

Value repeated_items(const Value& list, std::int64_t times, JinjaBudget& budget) {
  Items items;
  const Items once = times > 0 ? jinja_items(list, "*", budget) : Items();
  for (std::int64_t i = 0; i < times && !once.empty(); ++i) {
    budget.make(once.size() * sizeof(Value));
    items.insert(items.end(), once.begin(), once.end());
  }
  return Value::sequence(list.kind(), std::move(items));
}

bool is_kind(const Value& value, std::initializer_list<Kind> kinds) {
  return std::ranges::find(kinds, value.kind()) != kinds.end();
}

const std::map<std::string, std::string_view, std::less<>>& test_signs() {
  static const std::map<std::string, std::string_view, std::less<>> signs = {
      {"eq", "=="}, {"equalto", "=="},    {"==", "=="}, {"ne", "!="}, {"!=", "!="}, {"in", "in"},
      {"lt", "<"},  {"lessthan", "<"},    {"<", "<"},   {"le", "<="}, {"<=", "<="}, {"gt", ">"},
      {">", ">"},   {"greaterthan", ">"}, {"ge", ">="}, {">=", ">="}};
  return signs;
}

constexpr std::string_view kTests[] = {"boolean", "callable", "defined", "divisibleby", "escaped",  "even",
                                       "false",   "filter",   "float",   "integer",     "iterable", "lower",
                                       "mapping", "none",     "number",  "odd",         "sameas",   "sequence",
                                       "string",  "test",     "true",    "undefined",   "upper"};

bool is_test(std::string_view name) {
  return std::ranges::find(kTests, name) != std::end(kTests) || test_signs().contains(name);
}

bool rest_is(const Value& value, const Value& by, std::int64_t rest, JinjaBudget& budget) {
  if (!value.is_number()) refuse_operation(concat("% of ", value.name()));
  return calculated(value, "%", by).equals(Value(rest), budget);
}

bool tested(const Value& value, const std::string& name, JinjaArguments& arguments, JinjaBudget& budget) {
  const Kind kind = value.kind();
  if (name == "defined") return kind != Kind::Undefined;
  if (name == "undefined") return kind == Kind::Undefined;
  if (name == "none") return kind == Kind::None;
  if (name == "string") return kind == Kind::String;
  if (name == "mapping") return kind == Kind::Dict;
  if (name == "boolean") return kind == Kind::Bool;
  if (name == "true" || name == "false") return kind == Kind::Bool && value.truth() == (name == "true");
  if (name == "integer") return kind == Kind::Int;
  if (name == "float") return kind == Kind::Float;
  if (name == "number") return value.is_number();
  if (name == "callable") return is_kind(value, {Kind::Callable, Kind::Undefined, Kind::Loop, Kind::Joiner});
  if (name == "escaped") return value.is_safe();
  if (name == "filter" || name == "test") {
    if (!value.is(Kind::String) && !value.is_number()) refuse_operation(concat("whether ", value.name(), " is a name"));
    return value.is(Kind::String) && (name == "filter" ? is_filter(value.text(name)) : is_test(value.text(name)));
  }
  const bool has_parts = value.is_sequence() || is_kind(value, {Kind::Undefined, Kind::String, Kind::Dict});
  if (name == "sequence") return has_parts;
  if (name == "iterable") return has_parts || is_kind(value, {Kind::View, Kind::Generator, Kind::Loop});
  const Value two(std::int64_t{2});
  if (name == "odd") return rest_is(value, two, 1, budget);
  if (name == "even") return rest_is(value, two, 0, budget);
  if (name == "divisibleby") return rest_is(value, arguments.must(0, "num"), 0, budget);
  if (name == "lower" || name == "upper")
    return has_class(value.printed(budget), name == "lower" ? "islower" : "isupper");
  if (name == "sameas") {
    const Value other = arguments.must(0, "other");
    if (!is_kind(value, {Kind::None, Kind::Bool}) && !is_kind(other, {Kind::None, Kind::Bool}))
      refuse_operation(concat("whether ", value.name(), " is the same object as another"));
    return kind == other.kind() && value.truth() == other.truth();
  }
  const auto sign = test_signs().find(name);
  if (sign == test_signs().end()) refuse_operation("the test \"" + name + "\"");
  return jinja_compared(value, sign->second, arguments.must(0, "other"), budget);
}

}  // namespace

JinjaValue jinja_sum(const JinjaValue& left, std::string_view sign, const JinjaValue& right, JinjaBudget& budget) {
  if (sign == "~") {
    std::string text = left.printed(budget) + right.printed(budget);
    budget.make(text.size());
    return text;
  }
  if (left.is_number() && right.is_number()) return calculated(left, sign, right);
  if (sign == "+" && left.is(Kind::String) && right.is(Kind::String)) return added_texts(left, right, budget);
  const bool left_list = is_kind(left, {Kind::List, Kind::Tuple}),
             right_list = is_kind(right, {Kind::List, Kind::Tuple});
  if (sign == "+" && left.kind() == right.kind() && left_list) {
    Items items = jinja_items(left, "+", budget);
    for (Value& item : jinja_items(right, "+", budget)) items.push_back(std::move(item));
    return Value::sequence(left.kind(), std::move(items));
  }
  if (sign == "*" && left.is(Kind::String)) return repeated(left.text("*"), right.integer("*"), budget);
  if (sign == "*" && right.is(Kind::String)) return repeated(right.text("*"), left.integer("*"), budget);
  if (sign == "*" && left_list) return repeated_items(left, right.integer("*"), budget);
  if (sign == "*" && right_list) return repeated_items(right, left.integer("*"), budget);
  if (sign == "%" && left.is(Kind::String)) return formatted(left.text("%"), right, budget);
  refuse_operation(concat(sign, " of ", left.name(), " and ", right.name()));
}

bool jinja_compared(const JinjaValue& left, std::string_view sign, const JinjaValue& right, JinjaBudget& budget) {
  if (sign == "==") return left.equals(right, budget);
  if (sign == "!=") return !left.equals(right, budget);
  if (sign == "in") return right.contains(left, budget);
  if (sign == "not in") return !right.contains(left, budget);
  if (sign == "<") return left.less(right, budget);
  if (sign == ">") return right.less(left, budget);
  if (sign == "<=") return left.less(right, budget) || left.equals(right, budget);
  return right.less(left, budget) || left.equals(right, budget);
}

bool jinja_tested(const JinjaValue& value, const std::string& name, JinjaArguments& arguments, JinjaBudget& budget) {
  const bool result = tested(value, name, arguments, budget);
  arguments.must_be_used();
  return result;
}

JinjaValue::Items jinja_items(const JinjaValue& value, std::string_view of, JinjaBudget& budget) {
  if (is_kind(value, {Kind::Undefined, Kind::String, Kind::Dict, Kind::View}) || value.is_sequence())
    budget.make(value.length() * sizeof(Value));
  return value.items(of);
}

}  // namespace megatron::text
