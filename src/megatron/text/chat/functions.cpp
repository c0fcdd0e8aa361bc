#include "megatron/text/chat/functions.h"

#include <array>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/text/chat/jinja.h"
#include "megatron/text/chat/operations.h"

namespace megatron::text {
namespace {

using Value = JinjaValue;
using Kind = JinjaValue::Kind;
using Items = JinjaValue::Items;

[[noreturn]] void refuse_function(const std::string& what) { throw JinjaRefusal(what); }

/// dict() of a dict, or of pairs, with the named arguments behind; namespace() of the same.
Value::Members members_of(const std::string& name, JinjaArguments& arguments, JinjaBudget& budget) {
  Value::Members members;
  for (std::size_t i = 0; i < arguments.count(); ++i) {
    const Value& value = arguments.all()[i];
    budget.make(sizeof(Value) + members.size());
    if (!arguments.names()[i].empty()) {
      Value::put(members, Value(arguments.names()[i]), value);
    } else if (i > 0) {
      refuse_function(concat(name, "() of several values"));
    } else if (value.is(Kind::Dict)) {
      budget.make(value.mapping().members.size() * sizeof(Value));
      members = value.mapping().members;
    } else {
      for (const Value& pair : jinja_items(value, name, budget)) {
        Items both = jinja_items(pair, name, budget);
        if (both.size() != 2) refuse_function(concat(name, "() of other than pairs"));
        budget.make(sizeof(Value) + members.size());
        Value::put(members, std::move(both[0]), std::move(both[1]));
      }
    }
  }
  arguments.use_all();
  return members;
}

Value range(const Items& bounds, JinjaBudget& budget) {
  const std::size_t count = bounds.size();
  if (count < 1 || count > 3) refuse_function(concat("range of ", count, " arguments"));
  const auto number = [&](std::size_t i) { return bounds[i].integer("range"); };
  const std::int64_t from = count > 1 ? number(0) : 0, to = number(count > 1 ? 1 : 0);
  const std::int64_t step = count > 2 ? number(2) : 1;
  if (step == 0) refuse_function("a range of step 0");
  Items items;
  for (std::int64_t i = from; step > 0 ? i < to : i > to;) {
    budget.make(sizeof(Value));
    items.emplace_back(i);
    if (items.size() > 100000) refuse_function("a range of more than 100,000, which Jinja's sandbox refuses too");
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::sequence(Kind::Range, std::move(items));
}

Value date(const std::string& format, const std::tm& now) {
  std::array<char, 1024> text;
  const std::size_t size = std::strftime(text.data(), text.size(), format.c_str(), &now);
  if ((size == 0 && !format.empty()) || format.find("%f") != std::string::npos) refuse_function("a date of this form");
  return std::string(text.data(), size);
}

Value called(const std::string& name, JinjaArguments& arguments, const std::tm& now, JinjaBudget& budget) {
  if (name == "namespace") return Value::space(members_of(name, arguments, budget));
  if (name == "dict") return Value::dict(members_of(name, arguments, budget));
  if (name == "raise_exception") throw JinjaRaised(arguments.must(0, "message").printed(budget));
  if (name == "range") return range(arguments.rest(), budget);
  if (name == "strftime_now") return date(arguments.must(0, "format").text(name), now);
  if (name == "joiner") {
    const auto between = arguments.get(0, "sep");
    return Value::turns(Kind::Joiner, {between ? *between : Value(std::string(", "))});
  }
  if (name == "cycler") {
    if (arguments.count() == 0) refuse_function("a cycler of nothing");
    return Value::turns(Kind::Cycler, arguments.rest());
  }
  if (name == "lipsum") refuse_function("lipsum, whose text is drawn at random");
  refuse_function("the function \"" + name + "\"");
}

}  // namespace

bool is_jinja_function(std::string_view name) {
  return is_one_of(name,
                   {"namespace", "range", "dict", "cycler", "joiner", "lipsum", "raise_exception", "strftime_now"});
}

JinjaValue called_function(const std::string& name, JinjaArguments& arguments, const std::tm& now,
                           JinjaBudget& budget) {
  Value result = called(name, arguments, now, budget);
  arguments.must_be_used();
  return result;
}

JinjaValue called_joiner(const JinjaValue& joiner, JinjaArguments& arguments) {
  if (arguments.count() > 0) refuse_function("a joiner with arguments");
  Value::State& state = joiner.state();
  if (std::exchange(state.was_asked, true)) return state.items->items[0];
  return std::string();
}

}  // namespace megatron::text
