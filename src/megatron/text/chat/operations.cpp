#include "megatron/text/chat/operations.h"

#include <array>
#include <cmath>
#include <initializer_list>
#include <map>

#include "megatron/base/error.h"
#include "megatron/text/chat/json_dumps.h"
#include "megatron/text/chat/methods.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = JinjaValue::Kind;
using Items = JinjaValue::Items;

[[noreturn]] void refuse(const std::string& what) { throw JinjaRefusal(what); }

class Operations {
 public:
  explicit Operations(JinjaBudget& budget) : budget_(budget) {}

  Items items_of(const Value& value, std::string_view of) {
    if (!value.is(Kind::None) && !value.is_number())
      budget_.make((value.is(Kind::Generator) ? 1 : value.length()) * sizeof(Value));
    return value.items(of);
  }

  bool compared(const Value& left, std::string_view sign, const Value& right) {
    if (sign == "==") return left.equals(right, budget_);
    if (sign == "!=") return !left.equals(right, budget_);
    if (sign == "in") return right.contains(left, budget_);
    if (sign == "not in") return !right.contains(left, budget_);
    if (sign == "<") return left.less(right, budget_);
    if (sign == ">") return right.less(left, budget_);
    return sign == "<=" ? !right.less(left, budget_) : !left.less(right, budget_);
  }

  // -- calls

  /// Two texts as one. One that the filter "safe" went over has the other escaped, as Python's Markup has it.
  Value joined(const Value& left, const Value& right) {
    const bool safe = left.is_safe() || right.is_safe();
    const auto part = [&](const Value& value) {
      return safe && !value.is_safe() ? escaped(value.text("")) : value.text("");
    };
    const std::string a = part(left), b = part(right);
    budget_.make(a.size() + b.size());
    return safe ? Value::safe(a + b) : Value(a + b);
  }

  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
      constexpr std::string_view kSigns = "&<>\"'";
      constexpr std::array<const char*, 5> kEscapes = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
      if (const std::size_t at = kSigns.find(c); at != std::string_view::npos)
        out += kEscapes[at];
      else
        out += c;
    }
    return out;
  }

  Value sum_of(const Value& left, std::string_view sign, const Value& right) {
    if (sign == "~") {
      std::string text = left.printed(budget_) + right.printed(budget_);
      budget_.make(text.size());
      return text;
    }
    if (left.is_number() && right.is_number()) return reckoned(left, sign, right);
    if (sign == "+" && left.is(Kind::String) && right.is(Kind::String)) return joined(left, right);
    if (sign == "+" && left.kind() == right.kind() && (left.is(Kind::List) || left.is(Kind::Tuple))) {
      Items items = items_of(left, "+");
      for (Value& item : items_of(right, "+")) items.push_back(std::move(item));
      return Value::sequence(left.kind(), std::move(items));
    }
    if (sign == "*" && left.is(Kind::String)) return repeated(left.text("*"), right.integer("*"), budget_);
    if (sign == "*" && right.is(Kind::String)) return repeated(right.text("*"), left.integer("*"), budget_);
    if (sign == "%" && left.is(Kind::String)) return formatted(left.text("%"), right, budget_);
    refuse(concat(sign, " of ", left.name(), " and ", right.name()));
  }

  static Value reckoned(const Value& left, std::string_view sign, const Value& right) {
    if (left.is(Kind::Float) || right.is(Kind::Float) || sign == "/") {
      const double a = left.number(""), b = right.number("");
      if (b == 0 && is_one_of(sign, {"/", "//", "%"})) refuse("a division by zero");
      if (sign == "+") return a + b;
      if (sign == "-") return a - b;
      if (sign == "*") return a * b;
      if (sign == "/") return a / b;
      if (sign == "//") return std::floor(a / b);
      refuse(concat(sign, " of fractions"));
    }
    const std::int64_t a = left.integer(""), b = right.integer("");
    std::int64_t result = 0;
    bool too_large = false;
    if (sign == "+") {
      too_large = __builtin_add_overflow(a, b, &result);
    } else if (sign == "-") {
      too_large = __builtin_sub_overflow(a, b, &result);
    } else if (sign == "*") {
      too_large = __builtin_mul_overflow(a, b, &result);
    } else if (sign == "**") {
      if (b < 0) refuse("a power below 0");
      result = 1;
      if (a == 1 || a == -1 || a == 0) return a == 1 || b == 0 ? std::int64_t{1} : a == 0 ? a : b % 2 == 0 ? -a : a;
      for (std::int64_t i = 0; i < b && !too_large; ++i) too_large = __builtin_mul_overflow(result, a, &result);
    } else if (b == 0) {
      refuse("a division by zero");
    } else if (b == -1) {  // whose quotient may be too large
      too_large = sign == "//" && __builtin_sub_overflow(std::int64_t{0}, a, &result);
    } else {
      const std::int64_t rest = a % b != 0 && (a < 0) != (b < 0) ? a % b + b : a % b;  // of Python: as the divisor's
      result = sign == "%" ? rest : a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    }
    if (too_large) refuse("a number above 2^63");
    return result;
  }

  // -- tests

  bool tested(const Value& value, const std::string& name, JinjaArguments& arguments) {
    const bool result = tested_with(value, name, arguments);
    arguments.must_be_used();
    return result;
  }

  bool tested_with(const Value& value, const std::string& name, JinjaArguments& arguments) {
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
    if (name == "callable") return kind == Kind::Callable;
    const bool has_parts = same_kind(kind, {Kind::Undefined, Kind::String, Kind::List, Kind::Tuple, Kind::Dict});
    if (name == "sequence") return has_parts;
    if (name == "iterable") return has_parts || kind == Kind::View || kind == Kind::Generator || kind == Kind::Loop;
    if (name == "odd") return reckoned(value, "%", Value(std::int64_t{2})).integer(name) == 1;
    if (name == "even") return reckoned(value, "%", Value(std::int64_t{2})).integer(name) == 0;
    if (name == "divisibleby") return reckoned(value, "%", arguments.must(0, "num")).integer(name) == 0;
    if (name == "lower" || name == "upper") {
      const std::string text = value.printed(budget_);
      return call_method(Value(text), name == "lower" ? "islower" : "isupper", {}, budget_).truth();
    }
    if (name == "sameas") {
      const Value other = arguments.must(0, "other");
      if (!same_kind(kind, {Kind::None, Kind::Bool}) && !same_kind(other.kind(), {Kind::None, Kind::Bool}))
        refuse(concat("whether ", value.name(), " is the same object as another"));
      return kind == other.kind() && value.truth() == other.truth();
    }
    static const std::map<std::string, std::string_view, std::less<>> kSigns = {
        {"eq", "=="}, {"equalto", "=="},    {"==", "=="}, {"ne", "!="}, {"!=", "!="}, {"in", "in"},
        {"lt", "<"},  {"lessthan", "<"},    {"<", "<"},   {"le", "<="}, {"<=", "<="}, {"gt", ">"},
        {">", ">"},   {"greaterthan", ">"}, {"ge", ">="}, {">=", ">="}};
    const auto sign = kSigns.find(name);
    if (sign == kSigns.end()) refuse("the test \"" + name + "\"");
    return compared(value, sign->second, arguments.must(0, "other"));
  }

  static bool same_kind(Kind kind, std::initializer_list<Kind> kinds) {
    return std::ranges::find(kinds, kind) != kinds.end();
  }

  // -- filters

  /// A text of what Jinja gives to str() first.
  std::string plain(const Value& value, const std::string& of) {
    if (value.is_safe()) refuse(concat("the filter \"", of, "\" of a text that \"safe\" went over"));
    std::string text = value.printed(budget_);
    budget_.make(text.size());
    return text;
  }

  /// The member that `path` names: "a.b", "0".
  Value at_path(Value value, const Value& path) {
    if (path.is(Kind::Int)) return value.item(path);
    std::string_view rest = path.text("an attribute");
    while (!rest.empty()) {
      const std::string part(rest.substr(0, rest.find('.')));
      rest.remove_prefix(std::min(rest.size(), part.size() + 1));
      const bool index = !part.empty() && part.size() < 9 && part.find_first_not_of("0123456789") == std::string::npos;
      value = value.item(index ? Value(std::int64_t{std::stoll(part)}) : Value(part));
    }
    return value;
  }

  Value filtered(const Value& value, const std::string& name, JinjaArguments& arguments) {
    if (is_one_of(name, {"map", "select", "reject", "selectattr", "rejectattr"})) return picked(value, name, arguments);
    Value result = filtered_with(value, name, arguments);
    arguments.must_be_used();
    return result;
  }

  Value filtered_with(const Value& value, const std::string& name, JinjaArguments& arguments) {
    if (name == "default" || name == "d") {
      const auto other = arguments.get(0, "default_value");
      const bool of_false = arguments.flag(1, "boolean", false);
      const bool lacks = value.is(Kind::Undefined) || (of_false && !value.truth());
      return !lacks ? value : other ? *other : Value(std::string());
    }
    if (name == "length" || name == "count") return static_cast<std::int64_t>(value.length());
    if (name == "tojson") return to_json(value, arguments);
    if (name == "safe") return Value::safe(value.printed(budget_));
    if (name == "string") return value.is(Kind::String) ? value : Value(value.printed(budget_));
    if (name == "trim" && value.is_safe()) return Value::safe(std::string(python_strip(value.text(""))));
    if (is_one_of(name, {"trim", "lower", "upper", "title", "capitalize", "replace", "indent"}))
      return text_filter(plain(value, name), name, arguments);
    if (is_one_of(name, {"int", "float", "abs", "round"})) return number_filter(value, name, arguments);
    if (name == "format") {
      const Items given = arguments.all();
      for (std::size_t i = 0; i < given.size(); ++i) arguments.get(i, "");
      return formatted(value.text(name), Value::sequence(Kind::Tuple, given), budget_);
    }
    if (name == "attr") return value.attribute(arguments.must(0, "name").text(name));
    if (name == "items") {
      if (value.is(Kind::Undefined)) return Value::sequence(Kind::Generator, {});
      if (!value.is(Kind::Dict)) refuse(concat("items of ", value.name()));
      return Value::sequence(Kind::Generator, call_method(value, "items", {}, budget_).items(""));
    }
    return list_filter(value, name, arguments);
  }

  Value to_json(const Value& value, JinjaArguments& arguments) {
    JsonDumps form;
    form.ascii = arguments.flag(0, "ensure_ascii", false);
    const auto indent = arguments.get(1, "indent");
    const auto separators = arguments.get(2, "separators");
    form.sorted = arguments.flag(3, "sort_keys", false);
    if (indent && !indent->is(Kind::None)) {
      form.lines = true;
      form.between = ",";
      form.indent =
          indent->is(Kind::String) ? indent->text("tojson") : repeated(" ", indent->integer("tojson"), budget_);
    }
    if (separators && !separators->is(Kind::None)) {
      const Items both = separators->items("tojson");
      if (both.size() != 2) refuse("tojson with other than two separators");
      form.between = both[0].text("tojson");
      form.colon = both[1].text("tojson");
    }
    return form.of(value, budget_);
  }

  Value text_filter(std::string text, const std::string& name, JinjaArguments& arguments) {
    budget_.read(text.size());
    if (name == "trim") {
      const auto characters = arguments.get(0, "chars");
      const bool given = characters && !characters->is(Kind::None);
      return std::string(python_strip(text, true, true, given ? &characters->text(name) : nullptr));
    }
    if (name == "lower") return lower_case(std::move(text));
    if (name == "upper") return upper_case(std::move(text));
    if (name == "capitalize") return capitalized(std::move(text));
    if (name == "title") {  // words are what spaces, dashes and brackets part, as in Jinja and not in Python
      text = lower_case(std::move(text));
      bool begins = true;
      for (char& c : text) {
        const bool parts = std::string_view("-({[<").find(c) != std::string_view::npos || python_strip({&c, 1}).empty();
        if (begins) c = upper_case(std::string(1, c))[0];
        begins = parts;
      }
      return text;
    }
    if (name == "replace") {
      const Value from = arguments.must(0, "old"), to = arguments.must(1, "new");
      const auto most = arguments.get(2, "count");
      return replaced(text, from.text(name), to.text(name), most && !most->is(Kind::None) ? most->integer(name) : -1,
                      budget_);
    }
    const auto width = arguments.get(0, "width");
    const std::string by =
        width && width->is(Kind::String) ? width->text(name) : repeated(" ", width ? width->integer(name) : 4, budget_);
    const bool first = arguments.flag(1, "first", false), blank = arguments.flag(2, "blank", false);
    const Items lines = split_lines(text + "\n");
    std::string out;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string& line = lines[i].text("");
      budget_.make(by.size() + line.size() + 1);
      if (i > 0) out += '\n';
      if (i == 0 ? first : blank || !line.empty()) out += by;
      out += line;
    }
    return out;
  }

  Value number_filter(const Value& value, const std::string& name, JinjaArguments& arguments) {
    if (name == "abs") {
      if (value.is(Kind::Float)) return std::abs(value.number(name));
      return value.integer(name) < 0 ? sum_of(Value(std::int64_t{0}), "-", value) : value;
    }
    if (name == "round") {
      const auto precision = arguments.get(0, "precision");
      if ((precision && precision->integer(name) != 0) || arguments.count() > 1) refuse("\"round\" to digits");
      return std::nearbyint(value.number(name));
    }
    const auto otherwise = arguments.get(0, "default");
    if (value.is(Kind::String)) {
      const std::string text(python_strip(value.text(name)));
      const bool whole = !text.empty() && text.size() < 18 &&
                         text.find_first_not_of("0123456789", text[0] == '-') == std::string::npos && text != "-";
      if (whole && name == "int") return std::int64_t{std::stoll(text)};
      if (whole) return static_cast<double>(std::stoll(text));
      if (text.find_first_of("0123456789") != std::string::npos)
        refuse(concat("the filter \"", name, "\" of \"", text, "\""));
    } else if (value.is(Kind::Float) && name == "int") {
      if (!(std::abs(value.number(name)) < 9e18)) refuse("the filter \"int\" of a large number");
      return static_cast<std::int64_t>(value.number(name));
    } else if (value.is_number()) {
      return name == "int" ? Value(value.integer(name)) : Value(value.number(name));
    }
    if (otherwise) return *otherwise;
    return name == "int" ? Value(std::int64_t{0}) : Value(0.0);
  }

  Value list_filter(const Value& value, const std::string& name, JinjaArguments& arguments) {
    if (name == "last" && value.is(Kind::Generator)) refuse("the last of a generator");
    if (name == "reverse" && value.is(Kind::String))
      return value.slice(Value::none(), Value::none(), Value(std::int64_t{-1}));
    if (!is_one_of(name,
                   {"list", "first", "last", "join", "reverse", "sort", "unique", "dictsort", "sum", "min", "max"}))
      refuse("the filter \"" + name + "\"");
    if (name == "dictsort" && !value.is(Kind::Dict)) refuse(concat("dictsort of ", value.name()));
    Items items = items_of(name == "dictsort" ? call_method(value, "items", {}, budget_) : value, name);
    if (name == "list") return Value::sequence(Kind::List, std::move(items));
    if (name == "first") {
      if (items.empty()) return {};
      return items.front();
    }
    if (name == "last") return items.empty() ? Value() : items.back();
    if (name == "reverse") {
      std::ranges::reverse(items);
      return Value::sequence(Kind::Generator, std::move(items));
    }
    if (name == "join") return joined_items(items, arguments);
    if (name == "sum") {
      const auto attribute = arguments.get(0, "attribute"), start = arguments.get(1, "start");
      Value sum = start ? *start : Value(std::int64_t{0});
      for (const Value& item : items) sum = sum_of(sum, "+", attribute ? at_path(item, *attribute) : item);
      return sum;
    }
    if (name == "min" || name == "max") {
      const bool exact = arguments.flag(0, "case_sensitive", false);
      const auto attribute = arguments.get(1, "attribute");
      Value best;
      for (std::size_t i = 0; i < items.size(); ++i) {
        const Value a = key_of(items[i], exact, attribute), b = i == 0 ? a : key_of(best, exact, attribute);
        if (i == 0 || (name == "min" ? a.less(b, budget_) : b.less(a, budget_))) best = items[i];
      }
      return best;
    }
    if (name == "unique") {
      const bool exact = arguments.flag(0, "case_sensitive", false);
      const auto attribute = arguments.get(1, "attribute");
      Items kept, keys;
      for (const Value& item : items) {
        const Value key = key_of(item, exact, attribute);
        if (std::ranges::any_of(keys, [&](const Value& other) { return other.equals(key, budget_); })) continue;
        keys.push_back(key);
        kept.push_back(item);
      }
      return Value::sequence(Kind::Generator, std::move(kept));
    }
    return sorted(std::move(items), name, arguments);
  }

  Value joined_items(const Items& items, JinjaArguments& arguments) {
    const auto between = arguments.get(0, "d");
    const auto attribute = arguments.get(1, "attribute");
    std::string out;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::string part = (attribute ? at_path(items[i], *attribute) : items[i]).printed(budget_);
      const std::string before = i > 0 && between ? between->printed(budget_) : "";
      budget_.make(before.size() + part.size());
      out += before + part;
    }
    return out;
  }

  Value key_of(const Value& item, bool exact, const std::optional<Value>& attribute) {
    const Value key = attribute ? at_path(item, *attribute) : item;
    return !exact && key.is(Kind::String) ? Value(lower_case(key.text("an order"))) : key;
  }

  Value sorted(Items items, const std::string& name, JinjaArguments& arguments) {
    const bool dict = name == "dictsort";
    const bool exact = arguments.flag(dict ? 0 : 1, "case_sensitive", false);
    const bool reverse = arguments.flag(dict ? 2 : 0, "reverse", false);
    std::optional<Value> attribute;
    if (dict) {
      const auto by = arguments.get(1, "by");
      const bool by_value = by && by->text("dictsort") == "value";
      attribute = Value(std::int64_t{by_value ? 1 : 0});
    } else {
      attribute = arguments.get(2, "attribute");
    }
    std::vector<std::pair<Value, Value>> keyed;
    for (Value& item : items) {
      Value key = key_of(item, exact, attribute);
      keyed.emplace_back(std::move(key), std::move(item));
    }
    budget_.make(keyed.size() * sizeof(keyed[0]));
    std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
      return reverse ? b.first.less(a.first, budget_) : a.first.less(b.first, budget_);
    });
    Items all;
    for (auto& [key, item] : keyed) all.push_back(std::move(item));
    return Value::sequence(Kind::List, std::move(all));
  }

  /// map, select, reject, selectattr, rejectattr: items changed or picked by another filter or test.
  Value picked(const Value& value, const std::string& name, JinjaArguments& arguments) {
    if (!value.truth()) return Value::sequence(Kind::Generator, {});
    const Items items = items_of(value, name);
    Items result;
    const bool by_attribute = name.ends_with("attr"), keeps = name.starts_with("select");
    if (name == "map" && arguments.has_names()) {
      const Value attribute = arguments.must(items.size() + 1, "attribute");
      const auto otherwise = arguments.get(items.size() + 1, "default");
      arguments.must_be_used();
      for (const Value& item : items) {
        Value found = at_path(item, attribute);
        if (found.is(Kind::Undefined) && otherwise) found = *otherwise;
        result.push_back(std::move(found));
      }
      return Value::sequence(Kind::Generator, std::move(result));
    }
    const std::size_t at = by_attribute ? 1 : 0;  // where the test or filter is named
    const bool has_test = arguments.count() > at;
    if (!has_test && name == "map") refuse("map without a filter");
    const std::string rest = has_test ? arguments.all()[at].text(name) : name;
    Items others;
    std::vector<std::string> names;
    for (std::size_t i = at + 1; i < arguments.count(); ++i) {
      others.push_back(arguments.all()[i]);
      names.push_back(arguments.names()[i]);
    }
    for (const Value& item : items) {
      budget_.make(sizeof(Value));
      JinjaArguments given(rest, names, others);
      if (name == "map") {
        result.push_back(filtered(item, rest, given));
        continue;
      }
      const Value of = by_attribute ? at_path(item, arguments.all()[0]) : item;
      if ((has_test ? tested(of, rest, given) : of.truth()) == keeps) result.push_back(item);
    }
    return Value::sequence(Kind::Generator, std::move(result));
  }

 private:
  JinjaBudget& budget_;
};

}  // namespace

JinjaValue JinjaArguments::must(std::size_t place, const std::string& name) {
  auto value = get(place, name);
  if (!value) refuse(concat("\"", name_, "\" without ", name));
  return *value;
}

void JinjaArguments::must_be_used() const {
  if (used_ != values_.size()) refuse(concat("\"", name_, "\" with the arguments it has here"));
}

JinjaValue jinja_sum(const JinjaValue& left, std::string_view sign, const JinjaValue& right, JinjaBudget& budget) {
  return Operations(budget).sum_of(left, sign, right);
}

bool jinja_compared(const JinjaValue& left, std::string_view sign, const JinjaValue& right, JinjaBudget& budget) {
  return Operations(budget).compared(left, sign, right);
}

bool jinja_tested(const JinjaValue& value, const std::string& name, JinjaArguments& arguments, JinjaBudget& budget) {
  return Operations(budget).tested(value, name, arguments);
}

JinjaValue jinja_filtered(const JinjaValue& value, const std::string& name, JinjaArguments& arguments,
                          JinjaBudget& budget) {
  return Operations(budget).filtered(value, name, arguments);
}

JinjaValue::Items jinja_items(const JinjaValue& value, std::string_view of, JinjaBudget& budget) {
  return Operations(budget).items_of(value, of);
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace megatron::text
