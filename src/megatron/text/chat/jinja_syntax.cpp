#include "megatron/text/chat/jinja_syntax.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/text/chat/scan.h"

namespace megatron::text {
namespace {

using Expression = JinjaExpression;
using Statement = JinjaStatement;
using Token = JinjaToken;
using Piece = JinjaPiece;

constexpr int kDeepest = 100;  // published templates nest ten deep

/// Expressions of one tag, by recursive descent.
class ExpressionReader {
 public:
  explicit ExpressionReader(const Piece& piece) : tokens_(piece.tokens), line_(piece.line) {}

  bool at_end() const { return at_ == tokens_.size(); }
  int line() const { return at_end() ? (tokens_.empty() ? line_ : tokens_.back().line) : tokens_[at_].line; }

  /// Goes on where the next token is this name or sign.
  bool take(std::string_view text) {
    const bool taken = is(text);
    at_ += taken ? 1 : 0;
    return taken;
  }

  void must_take(std::string_view text) {
    if (!take(text)) refuse_jinja(line(), concat("no ", text, " before \"", at_end() ? "" : tokens_[at_].text, "\""));
  }

  std::string name() {
    if (at_end() || tokens_[at_].kind != Token::Kind::Name) refuse_jinja(line(), "a tag without a name");
    return tokens_[at_++].text;
  }

  /// The names that a loop or a set gives values to: a or a, b or (a, b).
  std::vector<std::string> targets() {
    const bool bracket = take("(");
    std::vector<std::string> names = {name()};
    while (take(",")) {
      if (is("in") || is("=") || is(")")) break;
      names.push_back(name());
    }
    if (bracket) must_take(")");
    return names;
  }

  /// An expression; of a loop's list the "if" behind it is no part.
  Expression read(bool with_condition = true) {
    const Level level(*this);
    Expression value = joined(Expression::Kind::Any);
    while (with_condition && take("if")) {
      value = made(Expression::Kind::Either, std::move(value));
      value.parts.push_back(joined(Expression::Kind::Any));
      if (take("else")) value.parts.push_back(read());
    }
    return value;
  }

  /// An expression, or several with commas between them: a tuple.
  Expression read_tuple(bool with_condition = true) {
    Expression value = read(with_condition);
    if (!is(",")) return value;
    value = made(Expression::Kind::Tuple, std::move(value));
    while (take(",") && !at_end() && !is(")")) value.parts.push_back(read(with_condition));
    return value;
  }

  /// FILTER | FILTER … of what a block has written.
  Expression filters(bool at_least_one) {
    Expression value;
    value.kind = Expression::Kind::Captured;
    value.line = line();
    if (at_least_one) filter(value);
    while (take("|")) filter(value);
    return value;
  }

  void must_end() const {
    if (!at_end()) refuse_jinja(line(), concat("\"", tokens_[at_].text, "\" where a tag should end"));
  }

 private:
  struct Level {
    explicit Level(ExpressionReader& reader) : depth_(reader.depth_) {
      if (++depth_ > kDeepest) refuse_jinja(reader.line(), concat("an expression nested ", kDeepest, " deep"));
    }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    int& depth_;
  };

  Expression made(Expression::Kind kind) const {
    Expression result;
    result.kind = kind;
    result.line = line();
    return result;
  }
  static Expression made(Expression::Kind kind, Expression first) {
    Expression result;
    result.kind = kind;
    result.line = first.line;
    result.parts.push_back(std::move(first));
    return result;
  }

  bool is(std::string_view text, std::size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() && tokens_[at_ + ahead].text == text &&
           tokens_[at_ + ahead].kind != Token::Kind::String;
  }

  Expression joined(Expression::Kind kind) {
    const bool any = kind == Expression::Kind::Any;
    const auto part = [&] { return any ? joined(Expression::Kind::All) : negated(); };
    Expression result = part();
    if (!is(any ? "or" : "and")) return result;
    result = made(kind, std::move(result));
    while (take(any ? "or" : "and")) result.parts.push_back(part());
    return result;
  }

  Expression negated() {
    const Level level(*this);
    return take("not") ? made(Expression::Kind::Not, negated()) : compared();
  }

  /// The operator of `signs` that is next, which is taken; empty where none is.
  std::string take_operator(std::initializer_list<const char*> signs) {
    for (const char* sign : signs)
      if (take(sign)) return sign;
    return "";
  }

  Expression compared() {
    return chain(
        Expression::Kind::Compare, [&] { return sum(0); }, [&] { return comparison(); });
  }

  /// PART SIGN PART …, or a PART alone.
  template <class Part, class Sign>
  static Expression chain(Expression::Kind kind, const Part& part, const Sign& sign) {
    Expression first = part();
    std::string found = sign();
    if (found.empty()) return first;
    Expression result = made(kind, std::move(first));
    for (; !found.empty(); found = sign()) {
      result.operators.push_back(found);
      result.parts.push_back(part());
    }
    return result;
  }

  std::string comparison() {
    if (is("not") && is("in", 1)) {
      at_ += 2;
      return "not in";
    }
    return take_operator({"==", "!=", "<=", ">=", "<", ">", "in"});
  }

  /// Level 0 adds, 1 joins, 2 multiplies, 3 raises, as Jinja binds them.
  Expression sum(int level) {
    const auto part = [&] { return level == 3 ? signed_value() : sum(level + 1); };
    const auto sign = [&] {
      return level == 0   ? take_operator({"+", "-"})
             : level == 1 ? take_operator({"~"})
             : level == 2 ? take_operator({"*", "//", "/", "%"})
                          : take_operator({"**"});
    };
    return chain(Expression::Kind::Sum, part, sign);
  }

  Expression signed_value(bool with_filters = true) {
    const Level level(*this);
    const bool negative = is("-");
    Expression value;
    if (negative || is("+")) {
      ++at_;
      value = signed_value(/*with_filters=*/false);
      if (negative) value = made(Expression::Kind::Negative, std::move(value));
    } else {
      value = primary();
    }
    for (int links = 0; follow(value, with_filters); ++links)
      if (links == kDeepest) refuse_jinja(line(), concat("a chain of ", kDeepest, " calls"));
    return value;
  }

  /// Puts what follows a value around it: a member, a call; with filters a filter, a test.
  bool follow(Expression& value, bool with_filters) {
    if (take(".")) {
      const bool index = !at_end() && tokens_[at_].kind == Token::Kind::Number;
      value = made(index ? Expression::Kind::Item : Expression::Kind::Attribute, std::move(value));
      if (index)
        value.parts.push_back(primary());
      else
        value.name = name();
    } else if (take("[")) {
      item(value);
    } else if (take("(")) {
      value = made(Expression::Kind::Call, std::move(value));
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

  void filter(Expression& value) {
    value = made(Expression::Kind::Filter, std::move(value));
    value.name = name();
    if (take("(")) arguments(value);
  }

  void test(Expression& value) {
    const bool negative = take("not");
    value = made(Expression::Kind::Test, std::move(value));
    value.name = name();
    if (take("(")) {
      arguments(value);
    } else if (begins_argument()) {
      value.operators.emplace_back();
      Expression argument = primary();
      while (is(".") || is("[") || is("(")) follow(argument, /*with_filters=*/false);
      value.parts.push_back(std::move(argument));
    }
    if (negative) value = made(Expression::Kind::Not, std::move(value));
  }

  /// x is divisibleby 3: a test may have an argument without brackets.
  bool begins_argument() const {
    if (at_end()) return false;
    const Token& next = tokens_[at_];
    if (next.kind == Token::Kind::Sign) return next.text == "[" || next.text == "{";
    if (next.kind != Token::Kind::Name) return true;
    constexpr std::array<std::string_view, 7> kWords = {"else", "or", "and", "is", "if", "in", "not"};
    return std::ranges::find(kWords, next.text) == kWords.end();
  }

  void item(Expression& value) {
    value = made(Expression::Kind::Item, std::move(value));
    const auto bound = [&] { return is(":") || is("]") ? Expression() : read(); };
    value.parts.push_back(bound());
    if (is(":")) {
      value.kind = Expression::Kind::Slice;
      for (int i = 0; i < 2; ++i) value.parts.push_back(take(":") ? bound() : Expression());
    }
    must_take("]");
  }

  void arguments(Expression& call) {
    for (bool first = true; !take(")"); first = false) {
      if (!first) must_take(",");
      if (take(")")) return;
      if (is("*") || is("**")) refuse_jinja(line(), "a call with *");
      if (!at_end() && tokens_[at_].kind == Token::Kind::Name && is("=", 1)) {
        call.operators.push_back(tokens_[at_].text);
        at_ += 2;
      } else {
        call.operators.emplace_back();
      }
      call.parts.push_back(read());
    }
  }

  Expression primary() {
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
    if (token.kind == Token::Kind::Sign)
      refuse_jinja(token.line, concat("\"", token.text, "\" where a value should be"));
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

  static JinjaValue number(const Token& token) {
    std::string digits = token.text;
    std::erase(digits, '_');
    const char *begin = digits.data(), *end = begin + digits.size();
    std::int64_t whole = 0;
    double fraction = 0;
    if (const auto [last, error] = std::from_chars(begin, end, whole); error == std::errc() && last == end)
      return whole;
    if (const auto [last, error] = std::from_chars(begin, end, fraction); error == std::errc() && last == end)
      return fraction;
    refuse_jinja(token.line, concat("the number ", token.text));
  }

  const std::vector<Token>& tokens_;
  int line_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

class StatementReader {
 public:
  explicit StatementReader(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  std::vector<Statement> read() {
    std::vector<Statement> all = body({});
    if (at_ < pieces_.size()) refuse_jinja(pieces_[at_].line, concat("\"", word(), "\" without its beginning"));
    return all;
  }

 private:
  std::string word() const { return pieces_[at_].tokens.empty() ? "" : pieces_[at_].tokens[0].text; }

  /// Statements up to a block that begins with one of `ends`.
  std::vector<Statement> body(std::initializer_list<std::string_view> ends) {
    const int begin = at_ < pieces_.size() ? pieces_[at_].line : pieces_.empty() ? 1 : pieces_.back().line;
    if (++depth_ > kDeepest) refuse_jinja(begin, concat("blocks nested ", kDeepest, " deep"));
    std::vector<Statement> all;
    for (; at_ < pieces_.size(); ++at_) {
      const Piece& piece = pieces_[at_];
      const std::string begins = piece.kind == Piece::Kind::Block ? word() : "";
      if (piece.kind == Piece::Kind::Block && (begins.starts_with("end") || begins == "elif" || begins == "else"))
        break;
      Statement statement;
      if (piece.kind == Piece::Kind::Text) {
        statement.name = piece.text;
      } else if (piece.kind == Piece::Kind::Output) {
        ExpressionReader reader(piece);
        statement.kind = Statement::Kind::Output;
        statement.expressions.push_back(reader.read_tuple());
        reader.must_end();
      } else {
        const int line = piece.line;
        statement = block(begins);
        statement.line = line;
        all.push_back(std::move(statement));
        continue;
      }
      statement.line = piece.line;
      all.push_back(std::move(statement));
    }
    if (ends.size() > 0 && (at_ == pieces_.size() || std::ranges::find(ends, word()) == ends.end()))
      refuse_jinja(begin, concat("a block without its \"", *(ends.end() - 1), "\""));
    --depth_;
    return all;
  }

  /// What the block that begins here holds, up to its end: {% end %}.
  void inside(Statement& result, std::initializer_list<std::string_view> ends) {
    ++at_;
    result.bodies.push_back(body(ends));
  }

  Statement block(const std::string& begins) {
    Statement result;
    const Piece& piece = pieces_[at_];
    ExpressionReader reader(piece);
    if (begins == "set") {
      reader.must_take(begins);
      set(result, reader);
    } else if (begins == "for") {
      reader.must_take(begins);
      loop(result, reader);
    } else if (begins == "if") {
      reader.must_take(begins);
      result.kind = Statement::Kind::If;
      result.expressions.push_back(reader.read_tuple(/*with_condition=*/true));
      reader.must_end();
      branches(result);
    } else if (begins == "macro") {
      reader.must_take(begins);
      macro(result, reader);
    } else if (begins == "filter") {
      reader.must_take(begins);
      result.kind = Statement::Kind::Filter;
      result.expressions.push_back(reader.filters(/*at_least_one=*/true));
      reader.must_end();
      inside(result, {"endfilter"});
    } else if (begins == "generation") {
      result.kind = Statement::Kind::Generation;
      inside(result, {"endgeneration"});
    } else if (begins == "break" || begins == "continue") {
      if (loops_ == 0) refuse_jinja(piece.line, concat("\"", begins, "\" outside of a loop"));
      result.kind = begins == "break" ? Statement::Kind::Break : Statement::Kind::Continue;
    } else {
      refuse_jinja(piece.line, concat("the statement \"", begins, "\""));
    }
    return result;
  }

  void set(Statement& result, ExpressionReader& reader) {
    result.kind = Statement::Kind::Set;
    result.names = reader.targets();
    if (result.names.size() == 1 && reader.take(".")) result.name = reader.name();
    if (reader.take("=")) {
      result.expressions.push_back(reader.read_tuple());
      reader.must_end();
      return;
    }
    result.kind = Statement::Kind::SetBlock;
    result.expressions.push_back(reader.filters(/*at_least_one=*/false));
    reader.must_end();
    inside(result, {"endset"});
  }

  void loop(Statement& result, ExpressionReader& reader) {
    result.kind = Statement::Kind::For;
    result.names = reader.targets();
    reader.must_take("in");
    result.expressions.push_back(reader.read_tuple(/*with_condition=*/false));
    if (reader.take("if")) result.expressions.push_back(reader.read());
    reader.must_end();
    ++loops_;
    inside(result, {"else", "endfor"});
    --loops_;
    if (word() == "else") inside(result, {"endfor"});
  }

  void macro(Statement& result, ExpressionReader& reader) {
    result.kind = Statement::Kind::Macro;
    result.name = reader.name();
    reader.must_take("(");
    while (!reader.take(")")) {
      if (!result.names.empty()) reader.must_take(",");
      if (reader.take(")")) break;
      result.names.push_back(reader.name());
      if (reader.take("="))
        result.expressions.push_back(reader.read());
      else if (!result.expressions.empty())
        refuse_jinja(reader.line(), "an argument of a macro without default behind one that has it");
    }
    reader.must_end();
    const int outside = std::exchange(loops_, 0);
    inside(result, {"endmacro"});
    loops_ = outside;
  }

  void branches(Statement& result) {
    for (;;) {
      const bool is_else = result.bodies.size() == result.expressions.size();
      if (is_else)
        inside(result, {"endif"});
      else
        inside(result, {"elif", "else", "endif"});
      if (word() == "endif") return;
      if (word() != "elif") continue;
      ExpressionReader reader(pieces_[at_]);
      reader.must_take("elif");
      result.expressions.push_back(reader.read_tuple());
      reader.must_end();
    }
  }

  std::vector<Piece> pieces_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

std::vector<JinjaStatement> parse_jinja(std::string_view source) { return StatementReader(scan_jinja(source)).read(); }

}  // namespace megatron::text
