#include "megatron/text/chat/jinja.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/printable.h"

namespace megatron::text {
namespace {

using Expression = JinjaExpression;
using Statement = JinjaStatement;
using Value = JinjaValue;
using Kind = JinjaValue::Kind;
using Items = JinjaValue::Items;

constexpr std::size_t kSteps = 2'000'000;  // expressions and statements; and a few for each byte of the conversation
constexpr int kDeepest = 800;              // bodies, expressions and macros within each other: the stack of a thread
constexpr std::size_t kWork = std::size_t{64} << 20;  // bytes made; and 64 for each byte of the conversation

[[noreturn]] void refuse(const std::string& what) { throw JinjaRefusal(what); }

/// Arguments of a filter, a test or a function: those without a name, then those with one.
class Arguments {
 public:
  Arguments(const Expression& of, Items values) : name_(of.name), values_(std::move(values)), names_(of.operators) {}

  std::size_t count() const { return values_.size(); }
  const Items& all() const { return values_; }
  const std::vector<std::string>& names() const { return names_; }

  bool has_names() const {
    return std::ranges::any_of(names_, [](const std::string& name) { return !name.empty(); });
  }

  /// The argument of this place or name; nothing where it is not given.
  std::optional<Value> get(std::size_t place, const std::string& name) {
    for (std::size_t i = 0; i < values_.size(); ++i)
      if (names_[i].empty() ? i == place : names_[i] == name) {
        ++used_;
        return values_[i];
      }
    return std::nullopt;
  }
  Value must(std::size_t place, const std::string& name) {
    auto value = get(place, name);
    if (!value) refuse(concat("\"", name_, "\" without ", name));
    return *value;
  }
  bool flag(std::size_t place, const std::string& name, bool otherwise) {
    const auto value = get(place, name);
    return value ? value->truth() : otherwise;
  }
  /// After all that are known have been asked for.
  void must_be_used() const {
    if (used_ != values_.size()) refuse(concat("\"", name_, "\" with the arguments it has here"));
  }

 private:
  std::string name_;
  Items values_;
  std::vector<std::string> names_;
  std::size_t used_ = 0;
};

bool same(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

/// How an expression is written, for messages.
std::string spelled(const Expression& expression) {
  switch (expression.kind) {
    case Expression::Kind::Name:
      return expression.name;
    case Expression::Kind::Attribute:
      return spelled(expression.parts[0]) + "." + expression.name;
    case Expression::Kind::Item:
      return spelled(expression.parts[0]) + "[…]";
    default:
      return "…";
  }
}

class Renderer {
 public:
  /// `size`: bytes of the conversation.
  Renderer(const nlohmann::ordered_json& context, const std::tm& now, std::size_t size)
      : budget_(kWork + 64 * size), now_(now), most_steps_(kSteps + 32 * size) {
    for (const auto& [name, value] : context.items()) globals_.names.emplace(name, Value(value));
  }

  int line() const { return line_; }
  JinjaText take() { return std::move(out_); }
  void run(const std::vector<Statement>& statements) { run(statements, globals_); }

 private:
  enum class Flow : std::uint8_t { Next, Break, Continue };

  struct Scope {
    std::map<std::string, Value, std::less<>> names;
    Scope* parent = nullptr;
  };

  /// One level of what recurses.
  class Level {
   public:
    explicit Level(Renderer& renderer) : renderer_(renderer) {
      if (++renderer_.steps_ > renderer_.most_steps_) refuse("it takes more steps than any chat needs");
      if (++renderer_.depth_ > kDeepest) refuse("macros that call each other without end");
    }
    ~Level() { --renderer_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Renderer& renderer_;
  };

  void write(const std::string& text) {
    budget_.make(text.size());
    out_.text += text;
  }

  Flow run(const std::vector<Statement>& body, Scope& scope) {
    const Level level(*this);
    for (const Statement& statement : body)
      if (const Flow flow = run(statement, scope); flow != Flow::Next) return flow;
    return Flow::Next;
  }

  Flow run(const Statement& statement, Scope& scope) {
    const Level level(*this);
    line_ = statement.line;
    switch (statement.kind) {
      case Statement::Kind::Text:
        write(statement.name);
        break;
      case Statement::Kind::Output:
        write(value_of(statement.expressions[0], scope).printed(budget_));
        break;
      case Statement::Kind::If: {
        std::size_t i = 0;
        while (i < statement.expressions.size() && !value_of(statement.expressions[i], scope).truth()) ++i;
        return i < statement.bodies.size() ? run(statement.bodies[i], scope) : Flow::Next;
      }
      case Statement::Kind::For:
        loop(statement, scope);
        break;
      case Statement::Kind::Set:
        set(statement, value_of(statement.expressions[0], scope), scope);
        break;
      case Statement::Kind::SetBlock:
        set(statement, of_block(statement, scope), scope);
        break;
      case Statement::Kind::Filter:
        write(of_block(statement, scope).printed(budget_));
        break;
      case Statement::Kind::Macro:
        if (&scope != &globals_) refuse("a macro within a macro or a loop");
        scope.names.insert_or_assign(statement.name, Value::callable(&statement));
        break;
      case Statement::Kind::Generation: {
        const std::size_t begin = out_.text.size();
        const Flow flow = within(statement.bodies[0], scope);
        if (captures_ == 0) out_.generated.push_back({begin, out_.text.size()});
        return flow;
      }
      case Statement::Kind::Break:
        return Flow::Break;
      case Statement::Kind::Continue:
        return Flow::Continue;
    }
    return Flow::Next;
  }

  /// Runs a body with variables of its own.
  Flow within(const std::vector<Statement>& body, Scope& scope) {
    Scope inner{.names = {}, .parent = &scope};
    return run(body, inner);
  }

  /// What `body` writes.
  std::string captured(const std::vector<Statement>& body, Scope& scope) {
    std::string outside = std::exchange(out_.text, {});
    ++captures_;
    run(body, scope);
    --captures_;
    return std::exchange(out_.text, std::move(outside));
  }

  Value of_block(const Statement& statement, Scope& scope) {
    Scope inner{.names = {}, .parent = &scope};
    std::string text = captured(statement.bodies[0], inner);
    const Value outside = std::exchange(captured_, Value(std::move(text)));
    Value value = value_of(statement.expressions[0], scope);
    captured_ = outside;
    return value;
  }

  static Value* find(Scope& scope, std::string_view name) {
    for (Scope* s = &scope; s != nullptr; s = s->parent)
      if (const auto found = s->names.find(name); found != s->names.end()) return &found->second;
    return nullptr;
  }

  void set(const Statement& statement, Value value, Scope& scope) {
    if (!statement.name.empty()) {
      const Value* space = find(scope, statement.names[0]);
      if (space == nullptr) refuse(concat("it sets a member of ", statement.names[0], ", which is not defined"));
      space->set_member(statement.name, std::move(value));
    } else {
      assign(statement.names, std::move(value), scope);
    }
  }

  static void assign(const std::vector<std::string>& names, Value value, Scope& scope) {
    if (names.size() == 1) {
      scope.names.insert_or_assign(names[0], std::move(value));
      return;
    }
    Items parts = value.items("names for the parts");
    if (parts.size() != names.size()) refuse(concat(names.size(), " names for ", parts.size(), " parts"));
    for (std::size_t i = 0; i < names.size(); ++i) scope.names.insert_or_assign(names[i], std::move(parts[i]));
  }

  void loop(const Statement& statement, Scope& scope) {
    Items items = items_of(value_of(statement.expressions[0], scope), "a loop");
    if (statement.expressions.size() > 1)
      std::erase_if(items, [&](const Value& item) {
        Scope inner{.names = {}, .parent = &scope};
        assign(statement.names, item, inner);
        return !value_of(statement.expressions[1], inner).truth();
      });
    if (items.empty() && statement.bodies.size() > 1) {
      within(statement.bodies[1], scope);
      return;
    }
    auto all = std::make_shared<Value::Sequence>();
    all->items = std::move(items);
    for (std::size_t i = 0; i < all->items.size(); ++i) {
      Scope inner{.names = {}, .parent = &scope};
      assign(statement.names, all->items[i], inner);
      inner.names.insert_or_assign("loop", Value::loop(all, i));
      if (run(statement.bodies[0], inner) == Flow::Break) return;
    }
  }

  Items items_of(const Value& value, std::string_view of) {
    if (!value.is(Kind::None) && !value.is_number())
      budget_.make((value.is(Kind::Generator) ? 1 : value.length()) * sizeof(Value));
    return value.items(of);
  }

  Value value_of(const Expression& expression, Scope& scope) {
    const Level level(*this);
    line_ = expression.line;
    return computed(expression, scope);
  }

  Value computed(const Expression& expression, Scope& scope) {
    const auto part = [&](std::size_t i) { return value_of(expression.parts[i], scope); };
    using E = Expression::Kind;
    switch (expression.kind) {
      case E::Literal:
        return expression.value;
      case E::Captured:
        return captured_;
      case E::Name: {
        const Value* found = find(scope, expression.name);
        if (found != nullptr) return *found;
        return is_function(expression.name) ? Value::callable(nullptr) : Value();
      }
      case E::List:
      case E::Tuple: {
        Items items;
        for (const Expression& item : expression.parts) items.push_back(value_of(item, scope));
        budget_.make(items.size() * sizeof(Value));
        return Value::sequence(expression.kind == E::List ? Kind::List : Kind::Tuple, std::move(items));
      }
      case E::Dict:
        return dict(expression, scope);
      case E::Sum: {
        Value sum = part(0);
        for (std::size_t i = 0; i < expression.operators.size(); ++i) {
          const Value right = part(i + 1);
          line_ = expression.line;
          sum = sum_of(sum, expression.operators[i], right);
        }
        return sum;
      }
      case E::Compare:
        return compare(expression, scope);
      case E::All:
      case E::Any: {
        Value value = part(0);
        for (std::size_t i = 1; i < expression.parts.size() && value.truth() == (expression.kind == E::All); ++i)
          value = part(i);
        return value;
      }
      case E::Not:
        return !part(0).truth();
      case E::Negative: {
        const Value value = part(0);
        if (value.is(Kind::Float)) return -value.number("-");
        return sum_of(Value(std::int64_t{0}), "-", value);
      }
      case E::Either:
        return part(1).truth() ? part(0) : expression.parts.size() > 2 ? part(2) : Value();
      case E::Attribute: {
        const Value of = part(0);
        if (of.is(Kind::Undefined)) not_defined(expression);
        if (of.is(Kind::Dict)) budget_.read(of.mapping().members.size() * 8);
        return of.attribute(expression.name);
      }
      case E::Item: {
        const Value of = part(0), key = part(1);
        if (of.is(Kind::Undefined)) not_defined(expression);
        if (of.is(Kind::Dict)) budget_.read(of.mapping().members.size() * 8);
        if (of.is(Kind::String) && !key.is(Kind::String)) budget_.make(of.length() * sizeof(std::string_view));
        return of.item(key);
      }
      case E::Slice: {
        const Value of = part(0), from = part(1), to = part(2), step = part(3);
        if (of.is(Kind::Undefined)) not_defined(expression);
        if (of.is(Kind::String) || of.is(Kind::List) || of.is(Kind::Tuple)) budget_.make(of.length() * sizeof(Value));
        return of.slice(from, to, step);
      }
      case E::Call:
        return call(expression, scope);
      case E::Filter: {
        const Value of = part(0);
        Arguments arguments = arguments_of(expression, scope);
        line_ = expression.line;
        return filtered(of, expression.name, arguments);
      }
      case E::Test: {
        const Value of = part(0);
        Arguments arguments = arguments_of(expression, scope);
        line_ = expression.line;
        return tested(of, expression.name, arguments);
      }
    }
    return {};
  }

  [[noreturn]] static void not_defined(const Expression& expression) {
    refuse(concat(spelled(expression), ", but ", spelled(expression.parts[0]), " is not defined"));
  }

  Value dict(const Expression& expression, Scope& scope) {
    Value::Members members;
    for (std::size_t i = 0; i + 1 < expression.parts.size(); i += 2) {
      Value key = value_of(expression.parts[i], scope);
      Value value = value_of(expression.parts[i + 1], scope);
      budget_.make(sizeof(Value) + members.size());
      Value::put(members, std::move(key), std::move(value));
    }
    return Value::dict(std::move(members));
  }

  Arguments arguments_of(const Expression& expression, Scope& scope) {
    Items values;
    for (std::size_t i = 1; i < expression.parts.size(); ++i) values.push_back(value_of(expression.parts[i], scope));
    return {expression, std::move(values)};
  }

  bool compare(const Expression& expression, Scope& scope) {
    Value left = value_of(expression.parts[0], scope);
    for (std::size_t i = 0; i < expression.operators.size(); ++i) {
      Value right = value_of(expression.parts[i + 1], scope);
      line_ = expression.line;
      if (!compared(left, expression.operators[i], right)) return false;
      left = std::move(right);
    }
    return true;
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

  // -- operators

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
      if (b == 0 && same(sign, {"/", "//", "%"})) refuse("a division by zero");
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

  // -- calls

  static bool is_function(std::string_view name) {
    return same(name, {"namespace", "range", "dict", "raise_exception", "strftime_now"});
  }

  Value call(const Expression& expression, Scope& scope) {
    const Expression& callee = expression.parts[0];
    if (callee.kind == Expression::Kind::Attribute) {
      const Value of = value_of(callee.parts[0], scope);
      if (of.is(Kind::Undefined)) not_defined(callee);
      Arguments arguments = arguments_of(expression, scope);
      line_ = expression.line;
      if (arguments.has_names()) refuse(concat("named arguments of the method \"", callee.name, "\""));
      return call_method(of, callee.name, arguments.all(), budget_);
    }
    if (callee.kind != Expression::Kind::Name) refuse("a call of what has no name");
    Arguments arguments = arguments_of(expression, scope);
    line_ = expression.line;
    if (const Value* found = find(scope, callee.name); found != nullptr) {
      if (!found->is(Kind::Callable) || found->macro() == nullptr)
        refuse(concat("a call of ", callee.name, ", which is ", found->name()));
      const Statement& macro = *found->macro();
      Value text = called(macro, arguments);
      line_ = expression.line;
      return text;
    }
    return function(callee.name, arguments);
  }

  Value called(const Statement& macro, const Arguments& arguments) {
    Scope inner{.names = {}, .parent = &globals_};
    const std::size_t count = macro.names.size();
    std::size_t places = 0;
    for (std::size_t i = 0; i < arguments.count(); ++i) {
      const std::string& name = arguments.names()[i];
      const auto place = name.empty()
                             ? places++
                             : static_cast<std::size_t>(std::ranges::find(macro.names, name) - macro.names.begin());
      if (place >= count)
        refuse(concat("an argument ", name.empty() ? std::to_string(i + 1) : "\"" + name + "\"", " of the macro \"",
                      macro.name, "\", which has none"));
      if (!inner.names.emplace(macro.names[place], arguments.all()[i]).second)
        refuse(concat("the argument \"", macro.names[place], "\" of the macro \"", macro.name, "\" twice"));
    }
    const std::size_t first_default = count - macro.expressions.size();
    for (std::size_t i = 0; i < count; ++i)
      if (!inner.names.contains(macro.names[i]))
        inner.names.emplace(macro.names[i],
                            i < first_default ? Value() : value_of(macro.expressions[i - first_default], inner));
    return captured(macro.bodies[0], inner);
  }

  Value function(const std::string& name, Arguments& arguments) {
    const std::size_t count = arguments.count();
    if (name == "namespace" || name == "dict") {
      Value::Members members;
      for (std::size_t i = 0; i < count; ++i) {
        const Value& value = arguments.all()[i];
        if (!arguments.names()[i].empty())
          Value::put(members, Value(arguments.names()[i]), value);
        else if (value.is(Kind::Dict))
          members.insert(members.end(), value.mapping().members.begin(), value.mapping().members.end());
        else
          refuse(concat(name, "() of ", value.name()));
      }
      budget_.make(members.size() * sizeof(Value));
      return name == "dict" ? Value::dict(std::move(members)) : Value::space(std::move(members));
    }
    if (name == "raise_exception") throw JinjaRaised(arguments.must(0, "message").printed(budget_));
    if (name == "range" && count >= 1 && count <= 3 && !arguments.has_names()) {
      const auto number = [&](std::size_t i) { return arguments.all()[i].integer("range"); };
      const std::int64_t from = count > 1 ? number(0) : 0, to = number(count > 1 ? 1 : 0);
      const std::int64_t step = count > 2 ? number(2) : 1;
      if (step == 0) refuse("a range of step 0");
      Items items;
      for (std::int64_t i = from; step > 0 ? i < to : i > to;) {
        budget_.make(sizeof(Value));
        items.emplace_back(i);
        if (items.size() > 100000) refuse("a range of more than 100,000, which Jinja's sandbox refuses too");
        if (__builtin_add_overflow(i, step, &i)) break;
      }
      return Value::sequence(Kind::List, std::move(items));
    }
    if (name == "strftime_now" && count == 1) {
      const std::string format = arguments.must(0, "format").text(name);
      std::array<char, 1024> text;
      const std::size_t size = std::strftime(text.data(), text.size(), format.c_str(), &now_);
      if ((size == 0 && !format.empty()) || format.find("%f") != std::string::npos) refuse("a date of this form");
      return std::string(text.data(), size);
    }
    refuse(concat("the function \"", name, "\""));
  }

  // -- tests

  bool tested(const Value& value, const std::string& name, Arguments& arguments) {
    const bool result = tested_with(value, name, arguments);
    arguments.must_be_used();
    return result;
  }

  bool tested_with(const Value& value, const std::string& name, Arguments& arguments) {
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

  Value filtered(const Value& value, const std::string& name, Arguments& arguments) {
    if (same(name, {"map", "select", "reject", "selectattr", "rejectattr"})) return picked(value, name, arguments);
    Value result = filtered_with(value, name, arguments);
    arguments.must_be_used();
    return result;
  }

  Value filtered_with(const Value& value, const std::string& name, Arguments& arguments) {
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
    if (same(name, {"trim", "lower", "upper", "title", "capitalize", "replace", "indent"}))
      return text_filter(plain(value, name), name, arguments);
    if (same(name, {"int", "float", "abs", "round"})) return number_filter(value, name, arguments);
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

  Value to_json(const Value& value, Arguments& arguments) {
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

  Value text_filter(std::string text, const std::string& name, Arguments& arguments) {
    budget_.read(text.size());
    if (name == "trim") {
      const auto characters = arguments.get(0, "chars");
      const bool given = characters && !characters->is(Kind::None);
      return std::string(python_strip(text, true, true, given ? &characters->text(name) : nullptr));
    }
    if (name == "lower") return lower_case(std::move(text));
    if (name == "upper") return upper_case(std::move(text));
    if (name == "capitalize") return capitalized(std::move(text));
    if (name == "title") {  // words are what blanks, dashes and brackets part, as in Jinja and not in Python
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

  Value number_filter(const Value& value, const std::string& name, Arguments& arguments) {
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

  Value list_filter(const Value& value, const std::string& name, Arguments& arguments) {
    if (name == "last" && value.is(Kind::Generator)) refuse("the last of a generator");
    if (name == "reverse" && value.is(Kind::String))
      return value.slice(Value::none(), Value::none(), Value(std::int64_t{-1}));
    if (!same(name, {"list", "first", "last", "join", "reverse", "sort", "unique", "dictsort", "sum", "min", "max"}))
      refuse("the filter \"" + name + "\"");
    if (name == "dictsort" && !value.is(Kind::Dict)) refuse(concat("dictsort of ", value.name()));
    Items items = items_of(name == "dictsort" ? call_method(value, "items", {}, budget_) : value, name);
    if (name == "list") return Value::sequence(Kind::List, std::move(items));
    if (name == "first") {
      if (items.empty()) return {};
      const Value first = items.front();
      return first;
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

  Value joined_items(const Items& items, Arguments& arguments) {
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

  Value sorted(Items items, const std::string& name, Arguments& arguments) {
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
  Value picked(const Value& value, const std::string& name, Arguments& arguments) {
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
        result.push_back(found.is(Kind::Undefined) && otherwise ? *otherwise : std::move(found));
      }
      return Value::sequence(Kind::Generator, std::move(result));
    }
    const std::size_t at = by_attribute ? 1 : 0;  // where the test or filter is named
    const bool has_test = arguments.count() > at;
    if (!has_test && name == "map") refuse("map without a filter");
    Expression rest;
    rest.name = has_test ? arguments.all()[at].text(name) : name;
    Items others;
    for (std::size_t i = at + 1; i < arguments.count(); ++i) {
      others.push_back(arguments.all()[i]);
      rest.operators.push_back(arguments.names()[i]);
    }
    for (const Value& item : items) {
      const Level level(*this);
      Arguments given(rest, others);
      if (name == "map") {
        result.push_back(filtered(item, rest.name, given));
        continue;
      }
      const Value of = by_attribute ? at_path(item, arguments.all()[0]) : item;
      if ((has_test ? tested(of, rest.name, given) : of.truth()) == keeps) result.push_back(item);
    }
    return Value::sequence(Kind::Generator, std::move(result));
  }

  JinjaText out_;
  Scope globals_;
  Value captured_;
  JinjaBudget budget_;
  const std::tm& now_;
  std::size_t steps_ = 0, most_steps_;
  int depth_ = 0, captures_ = 0, line_ = 1;
};

/// Bytes and items of a conversation.
std::size_t size_of(const nlohmann::ordered_json& value) {
  std::size_t size = value.is_string() ? value.get_ref<const std::string&>().size() : 8;
  if (value.is_structured())
    for (const auto& item : value) size += size_of(item);
  return size;
}

bool has_generation(const std::vector<JinjaStatement>& statements) {
  return std::ranges::any_of(statements, [](const JinjaStatement& statement) {
    return statement.kind == JinjaStatement::Kind::Generation || std::ranges::any_of(statement.bodies, has_generation);
  });
}

}  // namespace

JinjaText Jinja::render(const nlohmann::ordered_json& context, const std::tm& now) const {
  Renderer renderer(context, now, size_of(context));
  try {
    renderer.run(statements_);
  } catch (const JinjaRefusal& refusal) {
    throw ConfigError(rule_got_fix("a chat template may only do what is known here",
                                   concat("line ", renderer.line(), ": ", printable(refusal.what()))));
  }
  return renderer.take();
}

bool Jinja::marks_answers() const { return has_generation(statements_); }

}  // namespace megatron::text
