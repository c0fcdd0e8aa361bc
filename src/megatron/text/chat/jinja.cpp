#include "megatron/text/chat/jinja.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/printable.h"

namespace megatron::text {
namespace {

using nlohmann::json;
using Expression = JinjaExpression;
using Statement = JinjaStatement;

constexpr int kMostSteps = 200000;          // expressions and statements of one rendering
constexpr std::size_t kMostWork = 2 << 20;  // bytes and items of all values that it comes to: nothing grows unseen

[[noreturn]] void refuse(const std::string& got) {
  throw ConfigError(rule_got_fix("a chat template may only do what is known here", printable(got)));
}

/// Jinja's undefined, which prints as nothing.
json undefined() { return json(json::value_t::discarded); }

bool is_true(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<std::int64_t>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return value.is_structured() && !value.empty();
}

std::string printed(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_discarded()) return "";
  if (value.is_number_integer()) return std::to_string(value.get<std::int64_t>());
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_null()) return "None";
  refuse("it prints a list or an object");
}

const std::string& text_of(const json& value, const char* of) {
  if (!value.is_string()) refuse(concat(of, " of a value that is no text"));
  return value.get_ref<const std::string&>();
}

std::int64_t number_of(const json& value, const char* of) {
  if (!value.is_number_integer()) refuse(concat(of, " of a value that is no number"));
  return value.get<std::int64_t>();
}

/// Where index `i` of Python is among `size`; before the first and behind the last are possible.
std::int64_t index_among(std::int64_t i, std::size_t size) { return i < 0 ? i + static_cast<std::int64_t>(size) : i; }

json item_of(const json& value, const json& key) {
  if (value.is_object() && key.is_string()) {
    const auto found = value.find(key.get_ref<const std::string&>());
    return found == value.end() ? undefined() : *found;
  }
  if (!value.is_array() || !key.is_number_integer()) refuse("it takes a part of what has none");
  const std::int64_t at = index_among(key.get<std::int64_t>(), value.size());
  return at < 0 || at >= static_cast<std::int64_t>(value.size()) ? undefined() : value[static_cast<std::size_t>(at)];
}

json slice_of(const json& value, const json& from, const json& to) {
  if (!value.is_array()) refuse("it cuts what is no list");
  const auto bound = [&](const json& number, std::int64_t missing) {
    const std::int64_t at = number.is_null() ? missing : index_among(number_of(number, "a bound"), value.size());
    return std::clamp<std::int64_t>(at, 0, static_cast<std::int64_t>(value.size()));
  };
  const std::int64_t begin = bound(from, 0), end = bound(to, static_cast<std::int64_t>(value.size()));
  json part = json::array();
  for (std::int64_t i = begin; i < end; ++i) part.push_back(value[static_cast<std::size_t>(i)]);
  return part;
}

json sum_of(const json& left, const std::string& sign, const json& right) {
  if (sign == "~" || (sign == "+" && left.is_string() && right.is_string())) return printed(left) + printed(right);
  const std::int64_t a = number_of(left, sign.c_str()), b = number_of(right, sign.c_str());
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (std::max(std::abs(a), std::abs(b)) > kMost) refuse("it reckons with large numbers");
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "/" || b <= 0 || a < 0) refuse(concat("it computes ", a, " ", sign, " ", b));
  return sign == "%" ? a % b : a / b;
}

bool contains(const json& all, const json& part) {
  if (all.is_string()) return text_of(all, "in").find(text_of(part, "in")) != std::string::npos;
  if (all.is_object()) return part.is_string() && all.contains(part.get_ref<const std::string&>());
  if (!all.is_array()) refuse("it looks for a part in what has none");
  return std::ranges::find(all, part) != all.end();
}

bool compared(const json& left, const std::string& sign, const json& right) {
  const bool both_undefined = left.is_discarded() && right.is_discarded();
  if (sign == "==") return both_undefined || left == right;
  if (sign == "!=") return !both_undefined && !(left == right);
  if (sign == "in") return contains(right, left);
  if (sign == "not in") return !contains(right, left);
  const std::int64_t a = number_of(left, "an order"), b = number_of(right, "an order");
  return sign == "<" ? a < b : sign == ">" ? a > b : sign == "<=" ? a <= b : a >= b;
}

bool tested(const json& value, const std::string& name) {
  if (name == "defined") return !value.is_discarded();
  if (name == "undefined") return value.is_discarded();
  if (name == "none") return value.is_null();
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is_object();
  if (name == "iterable" || name == "sequence") return value.is_string() || value.is_structured();
  if (name == "boolean") return value.is_boolean();
  if (name == "true" || name == "false") return value.is_boolean() && value.get<bool>() == (name == "true");
  refuse("the test \"" + name + "\"");
}

/// Filters and methods of texts that have the same name, and take no arguments.
json stripped(const json& value, const std::string& name) {
  return python_strip(text_of(value, name.c_str()), name != "rstrip", name != "lstrip");
}

json filtered(const json& value, const std::string& name, const std::vector<json>& arguments) {
  if (name == "trim" && arguments.empty()) return stripped(value, name);
  if (name == "length" && arguments.empty() && value.is_structured()) return value.size();
  if (name == "list" && arguments.empty() && value.is_array()) return value;
  if (name == "first" && arguments.empty()) return item_of(value, 0);
  if (name == "last" && arguments.empty()) return item_of(value, -1);
  if (name == "default" && arguments.size() == 1) return value.is_discarded() ? arguments[0] : value;
  const bool keeps = name == "selectattr";
  if ((!keeps && name != "rejectattr") || arguments.size() != 3 || !value.is_array() ||
      (arguments[1] != "equalto" && arguments[1] != "=="))
    refuse("the filter \"" + name + "\" as it is used");
  json result = json::array();
  for (const json& item : value)
    if (compared(item_of(item, arguments[0]), "==", arguments[2]) == keeps) result.push_back(item);
  return result;
}

json called(const json& value, const std::string& name, const std::vector<json>& arguments) {
  const std::size_t count = arguments.size();
  if ((name == "strip" || name == "lstrip" || name == "rstrip") && count == 0) return stripped(value, name);
  if (name == "startswith" && count == 1) return text_of(value, "startswith").starts_with(text_of(arguments[0], "it"));
  if (name == "endswith" && count == 1) return text_of(value, "endswith").ends_with(text_of(arguments[0], "it"));
  if (name == "get" && count == 1 && value.is_object()) {
    json found = item_of(value, arguments[0]);
    return found.is_discarded() ? json() : found;
  }
  refuse("the method \"" + name + "\" as it is used");
}

class Renderer {
 public:
  explicit Renderer(const json& context) {
    for (const auto& [name, value] : context.items()) scopes_[0][name] = value;
  }

  std::string take() { return std::move(out_); }

  void run(const std::vector<Statement>& body) {
    for (const Statement& statement : body) {
      step();
      switch (statement.kind) {
        case Statement::Kind::Text:
          write(statement.name);
          break;
        case Statement::Kind::Output:
          write(printed(value_of(statement.expressions[0])));
          break;
        case Statement::Kind::Set:
          set(statement);
          break;
        case Statement::Kind::For:
          loop(statement);
          break;
        case Statement::Kind::If: {
          std::size_t i = 0;
          while (i < statement.expressions.size() && !is_true(value_of(statement.expressions[i]))) ++i;
          if (i < statement.bodies.size()) run(statement.bodies[i]);
        }
      }
    }
  }

 private:
  void step() {
    if (++steps_ > kMostSteps) refuse(concat("it takes more than ", kMostSteps, " steps for a short conversation"));
  }

  void write(const std::string& text) {
    weigh(text);
    out_ += text;
  }

  void weigh(const json& value) {
    work_ += value.is_string() ? value.get_ref<const std::string&>().size() : 1;
    if (work_ > kMostWork) refuse("it does more than a chat of a few words needs");
    if (value.is_structured())
      for (const json& item : value) weigh(item);
  }

  /// The variable, or null.
  json* find(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto found = scope->find(name); found != scope->end()) return &found->second;
    return nullptr;
  }

  void set(const Statement& statement) {
    json value = value_of(statement.expressions[0]);
    if (statement.names.size() == 1) {
      scopes_.back()[statement.names[0]] = std::move(value);
      return;
    }
    json* space = find(statement.names[0]);
    if (space == nullptr || !space->is_object()) refuse("it sets a member of what is no namespace");
    (*space)[statement.names[1]] = std::move(value);
  }

  void loop(const Statement& statement) {
    json items = value_of(statement.expressions[0]);
    if (statement.names.size() > 1 || !items.is_array()) refuse("a loop over what is no list");
    scopes_.emplace_back();
    if (statement.expressions.size() > 1) {
      json kept = json::array();
      for (const json& item : items) {
        scopes_.back()[statement.names[0]] = item;
        if (is_true(value_of(statement.expressions[1]))) kept.push_back(item);
      }
      items = std::move(kept);
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      step();
      scopes_.back() = {{statement.names[0], items[i]},
                        {"loop",
                         {{"index0", i},
                          {"index", i + 1},
                          {"revindex0", items.size() - i - 1},
                          {"length", items.size()},
                          {"first", i == 0},
                          {"last", i + 1 == items.size()}}}};
      run(statement.bodies[0]);
    }
    scopes_.pop_back();
  }

  std::vector<json> arguments_of(const Expression& expression) {
    std::vector<json> arguments;
    for (const std::string& name : expression.operators)
      if (!name.empty()) refuse(concat("the argument \"", name, "\" of a call"));
    for (std::size_t i = 1; i < expression.parts.size(); ++i) arguments.push_back(value_of(expression.parts[i]));
    return arguments;
  }

  json call(const Expression& expression) {
    const Expression& callee = expression.parts[0];
    if (callee.kind == Expression::Kind::Attribute)
      return called(value_of(callee.parts[0]), callee.name, arguments_of(expression));
    if (callee.kind != Expression::Kind::Name) refuse("a call of what has no name");
    if (callee.name == "namespace") return new_namespace(expression);
    std::vector<json> arguments = arguments_of(expression);
    if (callee.name == "raise_exception" && arguments.size() == 1) throw JinjaRaised(printed(arguments[0]));
    refuse("the function \"" + callee.name + "\"");
  }

  json new_namespace(const Expression& expression) {
    json space = json::object();
    for (std::size_t i = 1; i < expression.parts.size(); ++i)
      space[expression.operators[i - 1]] = value_of(expression.parts[i]);
    return space;
  }

  json value_of(const Expression& expression) {
    step();
    json value = computed(expression);
    weigh(value);
    return value;
  }

  json computed(const Expression& expression) {
    const auto part = [&](std::size_t i) { return value_of(expression.parts[i]); };
    using Kind = Expression::Kind;
    switch (expression.kind) {
      case Kind::Literal:
        return expression.value;
      case Kind::Name: {
        const json* found = find(expression.name);
        return found == nullptr ? undefined() : *found;
      }
      case Kind::List: {
        json list = json::array();
        for (const Expression& item : expression.parts) list.push_back(value_of(item));
        return list;
      }
      case Kind::Sum: {
        json sum = part(0);
        for (std::size_t i = 0; i < expression.operators.size(); ++i)
          sum = sum_of(sum, expression.operators[i], part(i + 1));
        return sum;
      }
      case Kind::Compare:
        return compare(expression);
      case Kind::All:
      case Kind::Any: {
        json value = part(0);
        for (std::size_t i = 1; i < expression.parts.size() && is_true(value) == (expression.kind == Kind::All); ++i)
          value = part(i);
        return value;
      }
      case Kind::Not:
        return !is_true(part(0));
      case Kind::Negative:
        return -number_of(part(0), "-");
      case Kind::Either:
        return is_true(part(1)) ? part(0) : expression.parts.size() > 2 ? part(2) : undefined();
      case Kind::Attribute:
        return item_of(part(0), expression.name);
      case Kind::Item:
        return item_of(part(0), part(1));
      case Kind::Slice:
        return slice_of(part(0), part(1), part(2));
      case Kind::Call:
        return call(expression);
      case Kind::Filter:
        return filtered(part(0), expression.name, arguments_of(expression));
      case Kind::Test:
        if (expression.parts.size() > 1) refuse("the test \"" + expression.name + "\" with arguments");
        return tested(part(0), expression.name);
    }
    return {};
  }

  json compare(const Expression& expression) {
    json left = value_of(expression.parts[0]);
    for (std::size_t i = 0; i < expression.operators.size(); ++i) {
      json right = value_of(expression.parts[i + 1]);
      if (!compared(left, expression.operators[i], right)) return false;
      left = std::move(right);
    }
    return true;
  }

  std::vector<std::map<std::string, json>> scopes_{1};
  std::string out_;
  int steps_ = 0;
  std::size_t work_ = 0;
};

}  // namespace

std::string Jinja::render(const json& context) const {
  Renderer renderer(context);
  renderer.run(statements_);
  return renderer.take();
}

std::string python_strip(std::string_view text, bool left, bool right) {
  constexpr std::string_view kBlanks[] = {
      "\t",           "\n",           "\v",           "\f",           "\r",
      "\x1C",         "\x1D",         "\x1E",         "\x1F",         " ",
      "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
      "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
      "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
      "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
  const auto strip = [&](auto ends, auto remove) {
    for (bool again = true; again;) {
      const auto* const blank = std::ranges::find_if(kBlanks, ends);
      again = blank != std::end(kBlanks);
      if (again) remove(blank->size());
    }
  };
  const auto starts = [&](std::string_view blank) { return text.starts_with(blank); };
  const auto ends = [&](std::string_view blank) { return text.ends_with(blank); };
  if (left) strip(starts, [&](std::size_t n) { text.remove_prefix(n); });
  if (right) strip(ends, [&](std::size_t n) { text.remove_suffix(n); });
  return std::string(text);
}

}  // namespace megatron::text
