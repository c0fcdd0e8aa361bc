#include "megatron/text/chat/jinja.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/chat/methods.h"
#include "megatron/text/chat/operations.h"

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
    Items items = jinja_items(value_of(statement.expressions[0], scope), "a loop", budget_);
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
          sum = jinja_sum(sum, expression.operators[i], right, budget_);
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
        return jinja_sum(Value(std::int64_t{0}), "-", value, budget_);
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
        JinjaArguments arguments = arguments_of(expression, scope);
        line_ = expression.line;
        return jinja_filtered(of, expression.name, arguments, budget_);
      }
      case E::Test: {
        const Value of = part(0);
        JinjaArguments arguments = arguments_of(expression, scope);
        line_ = expression.line;
        return jinja_tested(of, expression.name, arguments, budget_);
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

  JinjaArguments arguments_of(const Expression& expression, Scope& scope) {
    Items values;
    for (std::size_t i = 1; i < expression.parts.size(); ++i) values.push_back(value_of(expression.parts[i], scope));
    return {expression.name, expression.operators, std::move(values)};
  }

  bool compare(const Expression& expression, Scope& scope) {
    Value left = value_of(expression.parts[0], scope);
    for (std::size_t i = 0; i < expression.operators.size(); ++i) {
      Value right = value_of(expression.parts[i + 1], scope);
      line_ = expression.line;
      if (!jinja_compared(left, expression.operators[i], right, budget_)) return false;
      left = std::move(right);
    }
    return true;
  }

  static bool is_function(std::string_view name) {
    return is_one_of(name, {"namespace", "range", "dict", "raise_exception", "strftime_now"});
  }

  Value call(const Expression& expression, Scope& scope) {
    const Expression& callee = expression.parts[0];
    if (callee.kind == Expression::Kind::Attribute) {
      const Value of = value_of(callee.parts[0], scope);
      if (of.is(Kind::Undefined)) not_defined(callee);
      JinjaArguments arguments = arguments_of(expression, scope);
      line_ = expression.line;
      if (arguments.has_names()) refuse(concat("named arguments of the method \"", callee.name, "\""));
      return call_method(of, callee.name, arguments.all(), budget_);
    }
    if (callee.kind != Expression::Kind::Name) refuse("a call of what has no name");
    JinjaArguments arguments = arguments_of(expression, scope);
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

  Value called(const Statement& macro, const JinjaArguments& arguments) {
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

  Value function(const std::string& name, JinjaArguments& arguments) {
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
