#include "megatron/text/chat/filters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/text/chat/operations.h"
#include "megatron/text/chat/python/formats.h"
#include "megatron/text/chat/python/json_dumps.h"
#include "megatron/text/chat/python/methods.h"
#include "megatron/text/chat/python/numbers.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = JinjaValue::Kind;
using Items = JinjaValue::Items;

[[noreturn]] void refuse_filter(const std::string& what) { throw JinjaRefusal(what); }

constexpr std::string_view kFilters[] = {"abs",         "attr",       "batch",      "capitalize", "center",
                                         "count",       "d",          "default",    "dictsort",   "e",
                                         "escape",      "first",      "float",      "format",     "filesizeformat",
                                         "forceescape", "groupby",    "indent",     "int",        "items",
                                         "join",        "last",       "length",     "list",       "lower",
                                         "map",         "max",        "min",        "pprint",     "random",
                                         "reject",      "rejectattr", "replace",    "reverse",    "round",
                                         "safe",        "select",     "selectattr", "slice",      "sort",
                                         "string",      "striptags",  "sum",        "title",      "tojson",
                                         "trim",        "truncate",   "unique",     "upper",      "urlencode",
                                         "urlize",      "wordcount",  "wordwrap",   "xmlattr"};

Value to_json(const Value& value, JinjaArguments& arguments, JinjaBudget& budget) {
  JsonDumps form;
  form.ascii = arguments.flag(0, "ensure_ascii", false);
  const auto indent = arguments.get_some(1, "indent");
  const auto separators = arguments.get_some(2, "separators");
  form.sorted = arguments.flag(3, "sort_keys", false);
  if (indent) {
    form.lines = true;
    form.between = ",";
    form.indent = indent->is(Kind::String) ? indent->text("tojson") : repeated(" ", indent->integer("tojson"), budget);
  }
  if (separators) {
    const Items both = jinja_items(*separators, "tojson", budget);
    if (both.size() != 2) refuse_filter("tojson with other than two separators");
    form.between = both[0].text("tojson");
    form.colon = both[1].text("tojson");
  }
  return form.of(value, budget);
}

/// int and float: what Python makes of the value, or else the default.
Value number_of(const Value& value, const std::string& name, JinjaArguments& arguments) {
  const bool whole = name == "int";
  const auto given = arguments.get(0, "default");
  const std::int64_t base = whole ? arguments.integer(1, "base", 10) : 10;
  const Value otherwise = given ? *given : whole ? Value(std::int64_t{0}) : Value(0.0);
  if (value.is(Kind::Undefined)) refuse_filter(concat("the filter \"", name, "\" of what is not defined"));
  std::optional<double> number;
  if (value.is(Kind::String)) {
    if (whole)
      if (const auto found = python_int(value.text(name), static_cast<int>(std::clamp<std::int64_t>(base, -1, 99))))
        return *found;
    number = python_float(value.text(name));
  } else if (value.is(Kind::Float)) {
    number = value.number(name);
  } else if (value.is_number()) {
    return whole ? Value(value.integer(name)) : Value(value.number(name));
  }
  if (!number) return otherwise;
  if (!whole) return *number;
  if (!std::isfinite(*number)) return otherwise;
  if (!(std::abs(*number) < 9e18)) refuse_filter("the filter \"int\" of a large number");
  return static_cast<std::int64_t>(*number);
}

Value round_of(const Value& value, JinjaArguments& arguments) {
  const std::int64_t digits = arguments.integer(0, "precision", 0);
  const auto method = arguments.get(1, "method");
  const std::string way = method ? method->text("round") : "common";
  if (way == "common") return rounded(value, digits);
  if (way != "ceil" && way != "floor") refuse_filter("round by another method than common, ceil or floor");
  const Value scale = calculated(Value(std::int64_t{10}), "**", Value(digits));
  const double scaled = calculated(value, "*", scale).number("round");
  if (!std::isfinite(scaled)) refuse_filter("round of no number");
  return (way == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale.number("round");
}

Value absolute(const Value& value) {
  if (value.is(Kind::Float)) return std::abs(value.number("abs"));
  const std::int64_t number = value.integer("abs");
  return number < 0 ? calculated(Value(std::int64_t{0}), "-", Value(number)) : Value(number);
}

Value file_size(const Value& value, JinjaArguments& arguments) {
  const double bytes = value.is(Kind::String) ? python_float(value.text("filesizeformat")).value_or(std::nan(""))
                                              : value.number("filesizeformat");
  const bool binary = arguments.flag(0, "binary", false);
  if (!std::isfinite(bytes)) refuse_filter("filesizeformat of no number");
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return std::string("1 Byte");
  if (bytes < base) return concat(static_cast<std::int64_t>(std::max(bytes, -9e18)), " Bytes");
  constexpr std::string_view kUnits = "kMGTPEZY";
  std::size_t i = 0;
  double unit = base * base;
  for (; bytes >= unit && i + 1 < kUnits.size(); ++i) unit *= base;
  std::array<char, 400> text;
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), base * bytes / unit, std::chars_format::fixed, 1);
  const char letter = binary && i == 0 ? 'K' : kUnits[i];
  return concat(std::string_view(text.data(), end.ptr), " ", std::string(1, letter), binary ? "iB" : "B");
}

/// `value` % arguments, or % the named ones.
Value percent(const Value& value, JinjaArguments& arguments, JinjaBudget& budget) {
  if (value.is_safe()) refuse_filter("\"format\" of a text that \"safe\" went over");
  if (!arguments.has_names())
    return formatted(value.printed(budget), Value::sequence(Kind::Tuple, arguments.rest()), budget);
  Value::Members members;
  for (std::size_t i = 0; i < arguments.count(); ++i) {
    if (arguments.names()[i].empty()) refuse_filter("\"format\" with arguments of both kinds");
    members.emplace_back(Value(arguments.names()[i]), *arguments.get(i, arguments.names()[i]));
  }
  return formatted(value.printed(budget), Value::dict(std::move(members)), budget);
}

Value filtered(const Value& value, const std::string& name, JinjaArguments& arguments, JinjaBudget& budget) {
  if (name == "default" || name == "d") {
    const auto other = arguments.get(0, "default_value");
    const bool of_false = arguments.flag(1, "boolean", false);
    const bool lacks = value.is(Kind::Undefined) || (of_false && !value.truth());
    return !lacks ? value : other ? *other : Value(std::string());
  }
  if (name == "length" || name == "count") return static_cast<std::int64_t>(value.length());
  if (name == "tojson") return to_json(value, arguments, budget);
  if (name == "int" || name == "float") return number_of(value, name, arguments);
  if (name == "abs") return absolute(value);
  if (name == "round") return round_of(value, arguments);
  if (name == "filesizeformat") return file_size(value, arguments);
  if (name == "format") return percent(value, arguments, budget);
  if (name == "attr") {  // of a dict no member is one
    const std::string member = arguments.must(0, "name").text(name);
    return value.is(Kind::Dict) && !has_method(value, member) ? Value() : value.attribute(member);
  }
  if (name == "items") {
    if (value.is(Kind::Undefined)) return Value::sequence(Kind::Generator, {});
    if (!value.is(Kind::Dict)) refuse_filter(concat("items of ", value.name()));
    JinjaArguments none("items", {}, {});
    return Value::sequence(Kind::Generator, call_method(value, "items", none, budget).items(""));
  }
  if (auto text = text_filtered(value, name, arguments, budget)) return *text;
  if (auto list = list_filtered(value, name, arguments, budget)) return *list;
  refuse_filter("the filter \"" + name + "\"");
}

}  // namespace

bool is_filter(std::string_view name) { return std::ranges::find(kFilters, name) != std::end(kFilters); }

JinjaValue jinja_filtered(const JinjaValue& value, const std::string& name, JinjaArguments& arguments,
                          JinjaBudget& budget) {
  Value result = filtered(value, name, arguments, budget);
  arguments.must_be_used();
  return result;
}

}  // namespace megatron::text
