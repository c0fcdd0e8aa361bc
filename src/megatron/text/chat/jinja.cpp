#include "megatron/text/chat/jinja.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/chat/filters.h"
#include "megatron/text/chat/functions.h"
#include "megatron/text/chat/operations.h"
#include "megatron/text/chat/python/methods.h"

namespace megatron::text {

/// Variables of a body, and those around it.
struct JinjaScope {
  std::map<std::string, JinjaValue, std::less<>> names;
  JinjaScope* parent = nullptr;
};

namespace {

using Scope = JinjaScope;
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

/// What a macro says of itself.
Value of_macro(const JinjaStatement& macro, const std::string& name) {
  const auto has = [&](const char* word) { return Value(macro.has_word(word)); };
  if (name == "name") return macro.name;
  if (name == "catch_kwargs") return has("kwargs");
  if (name == "catch_varargs") return has("varargs");
  if (name == "caller") return has("caller");
  if (name != "arguments") return {};
  Items names;
  for (const std::string& argument : macro.names) names.emplace_back(argument);
  return Value::sequence(Kind::Tuple, std::move(names));
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
        for (const Expression& one : statement.expressions) write(value_of(one, scope).printed(budget_));
        break;
      case Statement::Kind::If: {
        std::size_t i = 0;
        while (i < statement.expressions.size() && !value_of(statement.expressions[i], scope).truth()) ++i;
        return i < statement.bodies.size() ? run(statement.bodies[i], scope) : Flow::Next;
      }
      case Statement::Kind::For:
        return loop(statement, value_of(statement.expressions[0], scope), scope, 0);
      case Statement::Kind::Set:
        assign(statement.target, value_of(statement.expressions[0], scope), scope);
        break;
      case Statement::Kind::SetBlock:
      case Statement::Kind::Filter: {
        Value value;
        if (const Flow flow = of_block(statement, scope, value); flow != Flow::Next) return flow;
        if (statement.kind == Statement::Kind::Filter)
          write(value.printed(budget_));
        else
          assign(statement.target, std::move(value), scope);
        break;
      }
      case Statement::Kind::With: {
        Scope inner{.names = {}, .parent = &scope};
        for (std::size_t i = 0; i < statement.expressions.size(); ++i)
          assign(statement.target.parts[i], value_of(statement.expressions[i], scope), inner);
        return run(statement.bodies[0], inner);
      }
      case Statement::Kind::Macro:
        scope.names.insert_or_assign(statement.name, macro(statement, scope));
        break;
      case Statement::Kind::Call: {
        const Value caller = macro(statement, scope);
        write(call(statement.expressions[0], scope, &caller).printed(budget_));
        break;
      }
      case Statement::Kind::Block:
        within(statement.bodies[0], statement.has_word("scoped") ? scope : globals_);
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

  /// What `body` writes goes to `text`.
  Flow captured(const std::vector<Statement>& body, Scope& scope, std::string& text) {
    return captured([&] { return run(body, scope); }, text);
  }

  template <class Run>
  Flow captured(const Run& run, std::string& text) {
    std::string outside = std::exchange(out_.text, {});
    ++captures_;
    const Flow flow = run();
    --captures_;
    text = std::exchange(out_.text, std::move(outside));
    return flow;
  }

  /// The value of the filters of a statement's block, where its end is reached.
  Flow of_block(const Statement& statement, Scope& scope, Value& value) {
    Scope inner{.names = {}, .parent = &scope};
    std::string text;
    if (const Flow flow = captured(statement.bodies[0], inner, text); flow != Flow::Next) return flow;
    const Value outside = std::exchange(captured_, Value(std::move(text)));
    value = value_of(statement.expressions[0], scope);
    captured_ = outside;
    return Flow::Next;
  }

  static Value macro(const Statement& statement, Scope& scope) {
    return Value::callable({.name = statement.name, .statement = &statement, .scope = &scope});
  }

  static Value* find(Scope& scope, std::string_view name) {
    for (Scope* s = &scope; s != nullptr; s = s->parent)
      if (const auto found = s->names.find(name); found != s->names.end()) return &found->second;
    return nullptr;
  }

  void assign(const Expression& target, Value value, Scope& scope) {
    if (target.kind == Expression::Kind::Name) {
      scope.names.insert_or_assign(target.name, std::move(value));
    } else if (target.kind == Expression::Kind::Attribute) {
      const std::string& name = target.parts[0].name;
      const Value* space = find(scope, name);
      if (space == nullptr) refuse(concat("it sets a member of ", name, ", which is not defined"));
      space->set_member(target.name, std::move(value));
    } else {
      Items parts = jinja_items(value, "names for the parts", budget_);
      if (parts.size() != target.parts.size())
        refuse(concat(target.parts.size(), " names for ", parts.size(), " parts"));
      for (std::size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], std::move(parts[i]), scope);
    }
  }

  /// `depth`: how often the loop has been called by itself.
  Flow loop(const Statement& statement, const Value& over, Scope& scope, std::size_t depth) {
    Items items = jinja_items(over, "a loop", budget_);
    if (statement.expressions.size() > 1)
      std::erase_if(items, [&](const Value& item) {
        Scope inner{.names = {}, .parent = &scope};
        assign(statement.target, item, inner);
        return !value_of(statement.expressions[1], inner).truth();
      });
    if (items.empty()) return statement.bodies.size() > 1 ? within(statement.bodies[1], scope) : Flow::Next;
    auto all = std::make_shared<Value::Sequence>();
    all->items = std::move(items);
    auto state = std::make_shared<Value::State>();
    state->items = all;
    state->depth = depth;
    state->recursive = statement.has_word("recursive") ? &statement : nullptr;
    state->scope = &scope;
    for (; state->at < all->items.size(); ++state->at) {
      Scope inner{.names = {}, .parent = &scope};
      assign(statement.target, all->items[state->at], inner);
      inner.names.insert_or_assign("loop", Value::loop(state));
      if (run(statement.bodies[0], inner) != Flow::Break) continue;
      if (over.is(Kind::Generator) && state->at + 1 < all->items.size()) over.leave();
      break;
    }
    return Flow::Next;
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
        if (expression.name == "self") refuse("\"self\", by which a template writes its blocks again");
        return is_jinja_function(expression.name) ? Value::callable({.name = expression.name}) : Value();
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
      case E::Positive: {
        const Value value = part(0);
        if (!value.is(Kind::Float)) return value.integer("+");
        return value;
      }
      case E::Either:
        return part(1).truth() ? part(0) : expression.parts.size() > 2 ? part(2) : Value();
      case E::Attribute: {
        const Value of = part(0);
        if (of.is(Kind::Undefined)) not_defined(expression);
        if (of.is(Kind::Dict)) budget_.read(of.mapping().members.size() * 8);
        if (of.is(Kind::Callable) && of.callable().statement != nullptr)
          return of_macro(*of.callable().statement, expression.name);
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

  /// Of a call; the caller of a block is one with this name.
  JinjaArguments arguments_of(const Expression& expression, Scope& scope, const Value* caller = nullptr) {
    Items values;
    std::vector<std::string> names;
    const auto add = [&](const std::string& name, Value value) {
      budget_.make(sizeof(Value) + (name.empty() ? 0 : names.size()));
      if (!name.empty() && std::ranges::find(names, name) != names.end())
        refuse(concat("the argument \"", name, "\" twice"));
      names.push_back(name);
      values.push_back(std::move(value));
    };
    for (std::size_t i = 1; i < expression.parts.size(); ++i) {
      const std::string& name = expression.operators[i - 1];
      Value value = value_of(expression.parts[i], scope);
      if (name == "*") {
        for (Value& item : jinja_items(value, "*", budget_)) add("", std::move(item));
      } else if (name == "**") {
        if (!value.is(Kind::Dict)) refuse(concat("** of ", value.name()));
        for (const auto& [key, member] : value.mapping().members) {
          if (key.text("**").empty()) refuse("** of a dict with an empty key");
          add(key.text("**"), member);
        }
      } else {
        add(name, std::move(value));
      }
    }
    if (caller != nullptr) add("caller", *caller);
    return {expression.name, std::move(names), std::move(values)};
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

  Value call(const Expression& expression, Scope& scope, const Value* caller = nullptr) {
    const Expression& callee = expression.parts[0];
    bool is_method = callee.kind == Expression::Kind::Attribute;
    Value function = value_of(is_method ? callee.parts[0] : callee, scope);
    if (is_method && function.is(Kind::Undefined)) not_defined(callee);
    if (is_method && function.is(Kind::Namespace)) {  // whose member may be a joiner
      function = function.attribute(callee.name);
      is_method = false;
    }
    JinjaArguments arguments = arguments_of(expression, scope, caller);
    line_ = expression.line;
    Value result = is_method ? call_method(function, callee.name, arguments, budget_)
                             : called(function, spelled(callee), arguments);
    line_ = expression.line;
    return result;
  }

  Value called(const Value& function, const std::string& name, JinjaArguments& arguments) {
    if (function.is(Kind::Joiner)) return called_joiner(function, arguments);
    if (function.is(Kind::Loop)) return called_loop(function.state(), arguments);
    if (function.is(Kind::Undefined)) refuse(concat("the function \"", name, "\""));
    if (!function.is(Kind::Callable)) refuse(concat("a call of ", name, ", which is ", function.name()));
    const Value::Callable& callable = function.callable();
    if (callable.statement != nullptr) return called_macro(*callable.statement, *callable.scope, arguments);
    return called_function(callable.name, arguments, now_, budget_);
  }

  /// loop(…) writes the body of a recursive loop for other items.
  Value called_loop(const Value::State& state, JinjaArguments& arguments) {
    if (state.recursive == nullptr) refuse("a call of the loop, which is not \"recursive\"");
    if (arguments.count() != 1) refuse("a call of the loop with other than one value");
    const Value over = arguments.rest()[0];
    std::string text;
    captured([&] { return loop(*state.recursive, over, *state.scope, state.depth + 1); }, text);
    return text;
  }

  Value called_macro(const Statement& macro, Scope& around, JinjaArguments& arguments) {
    Scope inner{.names = {}, .parent = &around};
    const std::size_t count = macro.names.size();
    const bool takes_caller = macro.has_word("caller");
    Items rest;
    Value::Members named;
    std::size_t places = 0;
    for (std::size_t i = 0; i < arguments.count(); ++i) {
      const std::string& name = arguments.names()[i];
      const Value& value = arguments.all()[i];
      const auto place = name.empty()
                             ? places++
                             : static_cast<std::size_t>(std::ranges::find(macro.names, name) - macro.names.begin());
      if (place < count && inner.names.emplace(macro.names[place], value).second) continue;
      if (name.empty() && macro.has_word("varargs"))
        rest.push_back(value);
      else if (name == "caller" && takes_caller)
        inner.names.emplace(name, value);
      else if (!name.empty() && macro.has_word("kwargs"))
        named.emplace_back(Value(name), value);
      else
        refuse(concat("an argument ", name.empty() ? std::to_string(i + 1) : "\"" + name + "\"", " of the macro \"",
                      macro.name, "\", which has none or has it already"));
    }
    if (takes_caller) inner.names.emplace("caller", Value());
    if (macro.has_word("varargs")) inner.names.emplace("varargs", Value::sequence(Kind::Tuple, std::move(rest)));
    if (macro.has_word("kwargs")) inner.names.emplace("kwargs", Value::dict(std::move(named)));
    const std::size_t first_default = count - macro.defaults.size();
    for (std::size_t i = 0; i < count; ++i)
      if (!inner.names.contains(macro.names[i]))
        inner.names.emplace(macro.names[i],
                            i < first_default ? Value() : value_of(macro.defaults[i - first_default], inner));
    std::string text;
    captured(macro.bodies[0], inner, text);
    return text;
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
