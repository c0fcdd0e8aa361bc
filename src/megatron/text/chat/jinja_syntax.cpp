#include "megatron/text/chat/jinja_syntax.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/printable.h"
#include "megatron/base/utf8.h"

namespace megatron::text {
namespace {

using Expression = JinjaExpression;
using Statement = JinjaStatement;

constexpr int kDeepest = 100;  // published templates nest ten deep

[[noreturn]] void refuse(int line, const std::string& got) {
  throw ConfigError(rule_got_fix("a chat template must be Jinja's, of the statements that are known here",
                                 concat("line ", line, ": ", printable(got))));
}

struct Token {
  enum class Kind : std::uint8_t { Name, Number, String, Sign };
  Kind kind = Kind::Name;
  std::string text;
  int line = 0;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

/// A piece of the source: text, or what a tag holds.
struct Piece {
  enum class Kind : std::uint8_t { Text, Output, Block };
  Kind kind = Kind::Text;
  int line = 0;
  std::string text;
  std::vector<Token> tokens;
};

/// Line ends as Jinja reads them, without the last.
std::string with_newlines(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      text += '\n';
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

/// Cuts a template into pieces.
class Scanner {
 public:
  explicit Scanner(std::string_view source) : source_(source) {}

  std::vector<Piece> pieces() {
    while (at_ < source_.size()) {
      const std::size_t tag = next_tag(at_);
      add_text(at_, tag);
      at_ = tag;
      if (tag < source_.size()) read_tag();
    }
    return std::move(pieces_);
  }

 private:
  int line_of(std::size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    counted_ = at;
    return line_;
  }

  std::size_t next_tag(std::size_t from) const {
    for (std::size_t at = source_.find('{', from); at != std::string_view::npos; at = source_.find('{', at + 1))
      if (at + 1 < source_.size() && std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos) return at;
    return source_.size();
  }

  /// The text before the tag at `end`: {%- takes all blanks before it, {% those of its line.
  void add_text(std::size_t begin, std::size_t end) {
    std::string_view text = source_.substr(begin, end - begin);
    const char sign = end + 2 < source_.size() ? source_[end + 2] : ' ';
    if (end == source_.size()) {
    } else if (sign == '-') {
      text = python_strip(text, false, true);
    } else if (sign != '+' && source_[end + 1] != '{') {
      const std::size_t line = text.rfind('\n') + 1;  // 0 where there is none
      const bool begins_line = line > 0 || begin == 0 || source_[begin - 1] == '\n';
      if (begins_line && python_strip(text.substr(line)).empty()) text = text.substr(0, line);
    }
    if (text.empty()) return;
    pieces_.push_back({Piece::Kind::Text, line_of(begin), std::string(text), {}});
  }

  void skip_blanks() { at_ = source_.size() - python_strip(source_.substr(at_), true, false).size(); }

  /// Goes behind `end` (two characters) and its sign, where they are here, and the blanks or the line end that follow.
  bool take_end(std::string_view end, bool cuts_line) {
    const std::string_view rest = source_.substr(std::min(at_, source_.size()));
    const bool has_sign = rest.starts_with('-') || (cuts_line && rest.starts_with('+'));
    if (!rest.substr(has_sign ? 1 : 0).starts_with(end)) return false;
    at_ += has_sign ? 3 : 2;
    if (rest[0] == '-')
      skip_blanks();
    else if (!has_sign && cuts_line && source_.substr(at_).starts_with('\n'))
      ++at_;
    return true;
  }

  void read_tag() {
    const std::size_t begin = at_;
    const char kind = source_[at_ + 1];
    at_ += 2;
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
    if (kind == '#') {
      while (!take_end("#}", true))
        if (++at_ >= source_.size()) refuse(line_of(begin), "a comment without end");
      return;
    }
    Piece piece{kind == '{' ? Piece::Kind::Output : Piece::Kind::Block, line_of(begin), "", {}};
    const std::string_view end = kind == '{' ? "}}" : "%}";
    int open = 0;  // brackets: within them "}}" is two braces
    for (;;) {
      skip_blanks();
      if (at_ >= source_.size()) refuse(piece.line, "a tag without end");
      if (piece.tokens.size() == 1 && piece.tokens[0].text == "raw" && kind == '%') {
        if (!take_end(end, false)) refuse(piece.line, "a tag \"raw\" with more than that");
        return read_raw(piece.line);
      }
      if (open == 0 && take_end(end, kind == '%')) break;
      piece.tokens.push_back(read_token());
      const Token& token = piece.tokens.back();
      if (token.kind != Token::Kind::Sign) continue;
      if (token.text == "(" || token.text == "[" || token.text == "{") ++open;
      if ((token.text == ")" || token.text == "]" || token.text == "}") && --open < 0)
        refuse(token.line, concat("\"", token.text, "\" that closes nothing"));
    }
    pieces_.push_back(std::move(piece));
  }

  /// All up to {% endraw %} is text.
  void read_raw(int line) {
    const std::size_t begin = at_;
    for (std::size_t tag = source_.find("{%", at_); tag != std::string_view::npos; tag = source_.find("{%", tag + 1)) {
      at_ = tag + 2;
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
      skip_blanks();
      if (!source_.substr(at_).starts_with("endraw")) continue;
      at_ += 6;
      skip_blanks();
      if (!take_end("%}", true)) continue;
      const std::size_t behind = at_;
      add_text(begin, tag);
      at_ = behind;
      return;
    }
    refuse(line, "a block \"raw\" without its end");
  }

  Token read_token() {
    const char first = source_[at_];
    const int line = line_of(at_);
    if (first == '\'' || first == '"') return read_string(line);
    std::size_t end = is_digit(first) ? end_of_number() : at_;
    while (end < source_.size() && is_name(source_[end])) ++end;
    Token token{is_digit(first) ? Token::Kind::Number : Token::Kind::Name, "", line};
    if (end == at_) {
      constexpr std::array<std::string_view, 6> kLong = {"==", "!=", "<=", ">=", "//", "**"};
      token.kind = Token::Kind::Sign;
      end += std::ranges::find(kLong, source_.substr(at_, 2)) == kLong.end() ? 1 : 2;
      if (std::string_view("+-/*%~[](){}=!<>.:|,").find(first) == std::string_view::npos)
        refuse(line, concat("the character ", source_.substr(at_, 1), " in a tag"));
    }
    token.text = source_.substr(at_, end - at_);
    behind_dot_ = token.text == ".";
    at_ = end;
    return token;
  }

  /// 12, 1_000, 1.5, 2e-5; behind a dot digits alone.
  std::size_t end_of_number() const {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) ++end;
    };
    const auto digit_at = [&](std::size_t i) { return i < source_.size() && is_digit(source_[i]); };
    digits();
    if (behind_dot_) return end;
    if (source_.substr(end).starts_with('.') && digit_at(end + 1)) {
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const std::size_t sign = end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+') ? 1 : 0;
      if (digit_at(end + 1 + sign)) {
        end += 1 + sign;
        digits();
      }
    }
    return end;
  }

  /// The string that begins here, with the escapes of Python.
  Token read_string(int line) {
    Token token{Token::Kind::String, "", line};
    const char quote = source_[at_++];
    while (at_ < source_.size() && source_[at_] != quote) {
      const char c = source_[at_++];
      if (c != '\\') {
        token.text += c;
        continue;
      }
      if (at_ == source_.size()) break;
      constexpr std::string_view kEscapes = "n\nt\tr\rb\bf\fv\va\a\\\\''\"\"";
      const char escape = source_[at_++];
      std::size_t i = 0;
      while (i < kEscapes.size() && kEscapes[i] != escape) i += 2;
      if (i < kEscapes.size())
        token.text += kEscapes[i + 1];
      else if (escape == 'x' || escape == 'u' || escape == 'U')
        append_utf8(token.text, code_point(line, escape == 'x' ? 2 : escape == 'u' ? 4 : 8));
      else if (is_digit(escape) || escape == 'N')
        refuse(line, concat("the escape \\", std::string(1, escape), " in a string"));
      else if (escape != '\n')  // which is left out with its backslash
        token.text += std::string{'\\', escape};
    }
    if (at_ >= source_.size()) refuse(line, "a string without end");
    ++at_;
    behind_dot_ = false;
    return token;
  }

  std::uint32_t code_point(int line, std::size_t digits) {
    const std::string_view text = source_.substr(at_, digits);
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.size() < digits || error != std::errc() || end != text.data() + digits || value > 0x10FFFF ||
        (value >= 0xD800 && value < 0xE000))
      refuse(line, concat("the escape of \"", text, "\" in a string"));
    at_ += digits;
    return value;
  }

  std::string_view source_;
  std::size_t at_ = 0, counted_ = 0;
  int line_ = 1;
  bool behind_dot_ = false;  // the last token was a dot: x.0.1 are parts of parts, no fraction
  std::vector<Piece> pieces_;
};

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
    if (!take(text)) refuse(line(), concat("no ", text, " before \"", at_end() ? "" : tokens_[at_].text, "\""));
  }

  std::string name() {
    if (at_end() || tokens_[at_].kind != Token::Kind::Name) refuse(line(), "a tag that lacks a name");
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
    if (!at_end()) refuse(line(), concat("\"", tokens_[at_].text, "\" where a tag should end"));
  }

 private:
  struct Level {
    explicit Level(ExpressionReader& reader) : depth_(reader.depth_) {
      if (++depth_ > kDeepest) refuse(reader.line(), concat("an expression nested ", kDeepest, " deep"));
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

  /// The operator of `signs` that is next, and goes on; empty where none is.
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
      if (links == kDeepest) refuse(line(), concat("a chain of ", kDeepest, " calls"));
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
      if (is("*") || is("**")) refuse(line(), "a call with *");
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
    if (at_end()) refuse(line(), "a tag that lacks a value");
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
    if (token.kind == Token::Kind::Sign) refuse(token.line, concat("\"", token.text, "\" where a value should be"));
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
    refuse(token.line, concat("the number ", token.text));
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
    if (at_ < pieces_.size()) refuse(pieces_[at_].line, concat("\"", word(), "\" without its beginning"));
    return all;
  }

 private:
  std::string word() const { return pieces_[at_].tokens.empty() ? "" : pieces_[at_].tokens[0].text; }

  /// Statements up to a block that begins with one of `ends`.
  std::vector<Statement> body(std::initializer_list<std::string_view> ends) {
    const int begin = at_ < pieces_.size() ? pieces_[at_].line : pieces_.empty() ? 1 : pieces_.back().line;
    if (++depth_ > kDeepest) refuse(begin, concat("blocks nested ", kDeepest, " deep"));
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
      refuse(begin, concat("a block without its \"", *(ends.end() - 1), "\""));
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
      if (loops_ == 0) refuse(piece.line, concat("\"", begins, "\" outside of a loop"));
      result.kind = begins == "break" ? Statement::Kind::Break : Statement::Kind::Continue;
    } else {
      refuse(piece.line, concat("the statement \"", begins, "\""));
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
        refuse(reader.line(), "an argument of a macro without default behind one that has it");
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

std::vector<JinjaStatement> parse_jinja(std::string_view source) {
  const std::string text = with_newlines(source);
  return StatementReader(Scanner(text).pieces()).read();
}

}  // namespace megatron::text
