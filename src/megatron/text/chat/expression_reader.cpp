#include "megatron/text/chat/expression_reader.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/text/chat/python/numbers.h"

namespace megatron::text {
namespace {

using Expression = JinjaExpression;
using Token = JinjaToken;

constexpr int kDeepestExpression = 100;  // published templates nest ten deep

Expression made_of(Expression::Kind kind, Expression first) {
  Expression result;
  result.kind = kind;
  result.line = first.line;
  result.parts.push_back(std::move(first));
  return result;
}

/// PART SIGN PART …, or a PART alone.
template <class Part, class Sign>
Expression chain(Expression::Kind kind, const Part& part, const Sign& sign) {
  Expression first = part();
  std::string found = sign();
  if (found.empty()) return first;
  Expression result = made_of(kind, std::move(first));
  for (; !found.empty(); found = sign()) {
    result.operators.push_back(found);
    result.parts.push_back(part());
  }
  return result;
}

JinjaValue number(const Token& token) {
  const std::string_view text = token.text;
  const bool has_base = text.size() > 1 && text[0] == '0' && std::string_view("xXoObB").find(text[1]) < 6;
  if (has_base || text.find_first_not_of("0123456789_") == std::string_view::npos) {
    try {
      if (const auto whole = python_int(text, 0)) return *whole;
    } catch (const JinjaRefusal& refusal) {
      refuse_jinja(token.line, refusal.what());
    }
  } else if (const auto fraction = python_float(text)) {
    return *fraction;
  }
  refuse_jinja(token.line, concat("the number ", token.text));
}

}  // namespace

class JinjaExpressionReader::Level {
 public:
  explicit Level(JinjaExpressionReader& reader) : depth_(reader.depth_) {
    if (++depth_ > kDeepestExpression)
      refuse_jinja(reader.line(), concat("an expression nested ", kDeepestExpression, " deep"));
  }
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& depth_;
};

bool JinjaExpressionReader::is(std::string_view text, std::size_t ahead) const {
  return at_ + ahead < tokens_.size() && tokens_[at_ + ahead].text == text &&
         tokens_[at_ + ahead].kind != Token::Kind::String;
}

bool JinjaExpressionReader::take(std::string_view text) {
  const bool taken = is(text);
  at_ += taken ? 1 : 0;
  return taken;
}

void JinjaExpressionReader::must_take(std::string_view text) {
  if (!take(text)) refuse_jinja(line(), concat("no ", text, " before \"", at_end() ? "" : tokens_[at_].text, "\""));
}

std::string JinjaExpressionReader::name() {
  if (at_end() || tokens_[at_].kind != Token::Kind::Name) refuse_jinja(line(), "a tag without a name");
  return tokens_[at_++].text;
}

std::string JinjaExpressionReader::target_name() {
  const int at = line();
  std::string found = name();
  for (const char* constant : {"true", "false", "none", "True", "False", "None"})
    if (found == constant) refuse_jinja(at, concat("a value for \"", found, "\""));
  return found;
}

Expression JinjaExpressionReader::targets(bool with_members) {
  Expression first = target(with_members);
  if (!is(",")) return first;
  Expression all = made_of(Expression::Kind::Tuple, std::move(first));
  while (take(",")) {
    if (at_end() || is(")")) break;
    all.parts.push_back(target(with_members));
  }
  return all;
}

Expression JinjaExpressionReader::target(bool with_members) {
  const Level level(*this);
  if (take("(")) {
    Expression all = targets(/*with_members=*/false);
    must_take(")");
    return all;
  }
  Expression result = made(Expression::Kind::Name);
  result.name = target_name();
  if (!with_members || !take(".")) return result;
  result = made_of(Expression::Kind::Attribute, std::move(result));
  result.name = name();
  return result;
}

Expression JinjaExpressionReader::read(bool with_condition) {
  const Level level(*this);
  Expression value = joined(Expression::Kind::Any);
  while (with_condition && take("if")) {
    value = made_of(Expression::Kind::Either, std::move(value));
    value.parts.push_back(joined(Expression::Kind::Any));
    if (take("else")) value.parts.push_back(read());
  }
  return value;
}

Expression JinjaExpressionReader::read_tuple(bool with_condition) {
  Expression value = read(with_condition);
  if (!is(",")) return value;
  value = made_of(Expression::Kind::Tuple, std::move(value));
  while (take(",") && !at_end() && !is(")")) value.parts.push_back(read(with_condition));
  return value;
}

Expression JinjaExpressionReader::filters(bool at_least_one) {
  Expression value = made(Expression::Kind::Captured);
  if (at_least_one) filter(value);
  while (take("|")) filter(value);
  return value;
}

void JinjaExpressionReader::must_end(bool before_body) {
  if (before_body) take(":");
  if (!at_end()) refuse_jinja(line(), concat("\"", tokens_[at_].text, "\" where a tag should end"));
}

Expression JinjaExpressionReader::made(Expression::Kind kind) const {
  Expression result;
  result.kind = kind;
  result.line = line();
  return result;
}

Expression JinjaExpressionReader::joined(Expression::Kind kind) {
  const bool any = kind == Expression::Kind::Any;
  const auto part = [&] { return any ? joined(Expression::Kind::All) : negated(); };
  Expression result = part();
  if (!is(any ? "or" : "and")) return result;
  result = made_of(kind, std::move(result));
  while (take(any ? "or" : "and")) result.parts.push_back(part());
  return result;
}

Expression JinjaExpressionReader::negated() {
  const Level level(*this);
  return take("not") ? made_of(Expression::Kind::Not, negated()) : compared();
}

/// The operator of `signs` that is next, which is taken; empty where none is.
std::string JinjaExpressionReader::take_operator(std::initializer_list<const char*> signs) {
  for (const char* sign : signs)
    if (take(sign)) return sign;
  return "";
}

Expression JinjaExpressionReader::compared() {
  return chain(
      Expression::Kind::Compare, [&] { return sum(0); }, [&] { return comparison(); });
}

std::string JinjaExpressionReader::comparison() {
  if (is("not") && is("in", 1)) {
    at_ += 2;
    return "not in";
  }
  return take_operator({"==", "!=", "<=", ">=", "<", ">", "in"});
}

/// Level 0 adds, 1 joins, 2 multiplies, 3 raises, as Jinja binds them.
Expression JinjaExpressionReader::sum(int level) {
  const auto part = [&] { return level == 3 ? signed_value() : sum(level + 1); };
  const auto sign = [&] {
    return level == 0   ? take_operator({"+", "-"})
           : level == 1 ? take_operator({"~"})
           : level == 2 ? take_operator({"*", "//", "/", "%"})
                        : take_operator({"**"});
  };
  return chain(Expression::Kind::Sum, part, sign);
}

Expression JinjaExpressionReader::signed_value(bool with_filters) {
  const Level level(*this);
  const bool negative = is("-");
  Expression value;
  if (negative || is("+")) {
    ++at_;
    value = signed_value(/*with_filters=*/false);
    value = made_of(negative ? Expression::Kind::Negative : Expression::Kind::Positive, std::move(value));
  } else {
    value = primary();
  }
  for (int links = 0; follow(value, with_filters); ++links)
    if (links == kDeepestExpression) refuse_jinja(line(), concat("a chain of ", kDeepestExpression, " calls"));
  return value;
}

/// Puts what follows a value around it: a member, a call; with filters a filter, a test.
bool JinjaExpressionReader::follow(Expression& value, bool with_filters) {
  if (take(".")) {
    const bool index = !at_end() && tokens_[at_].kind == Token::Kind::Number;
    value = made_of(index ? Expression::Kind::Item : Expression::Kind::Attribute, std::move(value));
    if (index)
      value.parts.push_back(primary());
    else
      value.name = name();
  } else if (take("[")) {
    item(value);
  } else if (take("(")) {
    value = made_of(Expression::Kind::Call, std::move(value));
    arguments(value);
  } else if (with_filters && take("|")) {
    filter(value);
  } else if (with_filters && take("is")) {
    test(value);
  } else {
    return false;
  }
  return true;
}

void JinjaExpressionReader::filter(Expression& value) {
  value = made_of(Expression::Kind::Filter, std::move(value));
  value.name = name();
  if (take("(")) arguments(value);
}

void JinjaExpressionReader::test(Expression& value) {
  const bool negative = take("not");
  value = made_of(Expression::Kind::Test, std::move(value));
  value.name = name();
  if (take("(")) {
    arguments(value);
  } else if (begins_argument()) {
    value.operators.emplace_back();
    Expression argument = primary();
    while (is(".") || is("[") || is("(")) follow(argument, /*with_filters=*/false);
    value.parts.push_back(std::move(argument));
  }
  if (negative) value = made_of(Expression::Kind::Not, std::move(value));
}

/// x is divisibleby 3: a test may have an argument without brackets.
bool JinjaExpressionReader::begins_argument() const {
  if (at_end()) return false;
  const Token& next = tokens_[at_];
  if (next.kind == Token::Kind::Sign) return next.text == "[" || next.text == "{";
  if (next.kind != Token::Kind::Name) return true;
  constexpr std::array<std::string_view, 7> kWords = {"else", "or", "and", "is", "if", "in", "not"};
  return std::ranges::find(kWords, next.text) == kWords.end();
}

void JinjaExpressionReader::item(Expression& value) {
  value = made_of(Expression::Kind::Item, std::move(value));
  const auto bound = [&] { return is(":") || is("]") ? Expression() : read(); };
  value.parts.push_back(bound());
  if (is(":")) {
    value.kind = Expression::Kind::Slice;
    for (int i = 0; i < 2; ++i) value.parts.push_back(take(":") ? bound() : Expression());
  }
  must_take("]");
}

void JinjaExpressionReader::arguments(Expression& call) {
  bool has_list = false, has_dict = false, has_names = false;
  for (bool first = true; !take(")"); first = false) {
    if (!first) must_take(",");
    if (take(")")) return;
    std::string name = take_operator({"**", "*"});
    if (name.empty() && !at_end() && tokens_[at_].kind == Token::Kind::Name && is("=", 1)) {
      name = tokens_[at_].text;
      at_ += 2;
    }
    if (has_dict || (has_list && (name == "*" || name.empty())) || (has_names && name.empty()))
      refuse_jinja(line(), "a call whose arguments are in another order");
    has_list |= name == "*";
    has_dict |= name == "**";
    has_names |= !name.empty() && name != "*" && name != "**";
    call.operators.push_back(std::move(name));
    call.parts.push_back(read());
  }
}

Expression JinjaExpressionReader::primary() {
  if (at_end()) refuse_jinja(line(), "a tag without a value");
  Expression result = made(Expression::Kind::Literal);
  if (take("(")) {
    if (take(")")) return made(Expression::Kind::Tuple);
    result = read_tuple();
    must_take(")");
    return result;
  }
  if (take("[")) {
    result.kind = Expression::Kind::List;
    while (!take("]")) {
      if (!result.parts.empty()) must_take(",");
      if (take("]")) break;
      result.parts.push_back(read());
    }
    return result;
  }
  if (take("{")) {
    result.kind = Expression::Kind::Dict;
    while (!take("}")) {
      if (!result.parts.empty()) must_take(",");
      if (take("}")) break;
      result.parts.push_back(read());
      must_take(":");
      result.parts.push_back(read());
    }
    return result;
  }
  const Token& token = tokens_[at_++];
  if (token.kind == Token::Kind::Sign) refuse_jinja(token.line, concat("\"", token.text, "\" where a value should be"));
  if (token.kind == Token::Kind::String) {
    std::string text = token.text;
    while (!at_end() && tokens_[at_].kind == Token::Kind::String) text += tokens_[at_++].text;  // neighbours are one
    result.value = JinjaValue(std::move(text));
  } else if (token.kind == Token::Kind::Number) {
    result.value = number(token);
  } else if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
    result.value = JinjaValue(token.text.size() == 4);
  } else if (token.text != "none" && token.text != "None") {
    result.kind = Expression::Kind::Name;
    result.name = token.text;
  }
  return result;
}

}  // namespace megatron::text
