#include "megatron/text/chat/jinja_syntax.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/printable.h"

namespace megatron::text {
namespace {

using Expression = JinjaExpression;
using Statement = JinjaStatement;

constexpr int kDeepest = 100;
constexpr std::string_view kBlanks = " \t\n\r\v\f";

[[noreturn]] void refuse(const std::string& got) {
  throw ConfigError(rule_got_fix("a chat template must be Jinja's, with if, for and set", printable(got)));
}

struct Token {
  enum class Kind : std::uint8_t { End, Name, Number, String, Sign };
  Kind kind = Kind::End;
  std::string text;
};

bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A piece of the source: text, or what a tag holds.
struct Piece {
  enum class Kind : std::uint8_t { Text, Output, Block };
  Kind kind = Kind::Text;
  std::string text;
  std::vector<Token> tokens;
};

/// Reads the string that begins at `at`; `at` goes behind it.
Token read_string(std::string_view source, std::size_t& at) {
  Token token{Token::Kind::String, ""};
  const char quote = source[at++];
  for (; at < source.size() && source[at] != quote; ++at) {
    if (source[at] != '\\') {
      token.text += source[at];
      continue;
    }
    constexpr std::string_view kEscapes = "n\nt\tr\rb\bf\fv\v\\\\''\"\"";
    if (++at == source.size()) break;
    std::size_t i = 0;
    while (i < kEscapes.size() && kEscapes[i] != source[at]) i += 2;
    if (i >= kEscapes.size()) refuse(concat("the escape \\", source[at], " in a string"));
    token.text += kEscapes[i + 1];
  }
  if (at >= source.size()) refuse("a string without end");
  ++at;
  return token;
}

/// Cuts a template into pieces.
class Scanner {
 public:
  explicit Scanner(std::string_view source) : source_(source) {
    if (source_.ends_with('\n')) source_.remove_suffix(1);
  }

  std::vector<Piece> pieces() {
    while (at_ < source_.size()) {
      const std::size_t tag = next_tag();
      std::string text(source_.substr(at_, tag - at_));
      at_ = tag;
      if (strip_next_) text.erase(0, std::min(text.find_first_not_of(kBlanks), text.size()));
      if (cut_line_ && text.starts_with('\n')) text.erase(0, 1);
      strip_next_ = cut_line_ = false;
      if (tag < source_.size()) strip_before_tag(text);
      if (!text.empty()) pieces_.push_back({Piece::Kind::Text, std::move(text), {}});
      if (tag < source_.size()) read_tag();
    }
    return std::move(pieces_);
  }

 private:
  std::size_t next_tag() const {
    for (std::size_t at = source_.find('{', at_); at != std::string_view::npos; at = source_.find('{', at + 1))
      if (at + 1 < source_.size() && std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos) return at;
    return source_.size();
  }

  /// {%- takes all blanks before it, {% those of its line.
  void strip_before_tag(std::string& text) const {
    const char sign = at_ + 2 < source_.size() ? source_[at_ + 2] : ' ';
    if (sign == '-') {
      text.erase(text.find_last_not_of(kBlanks) + 1);
    } else if (sign != '+' && source_[at_ + 1] != '{') {
      const std::size_t end = text.find_last_not_of(" \t") + 1;
      const bool begins_line =
          end == 0 ? text.size() == at_ || source_[at_ - text.size() - 1] == '\n' : text[end - 1] == '\n';
      if (begins_line) text.erase(end);
    }
  }

  void read_tag() {
    const char kind = source_[at_ + 1];
    at_ += 2;
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
    if (kind == '#') {
      const std::size_t end = source_.find("#}", at_);
      if (end == std::string_view::npos) refuse("a comment without end");
      strip_next_ = end > at_ && source_[end - 1] == '-';
      cut_line_ = true;
      at_ = end + 2;
      return;
    }
    Piece piece{kind == '{' ? Piece::Kind::Output : Piece::Kind::Block, "", {}};
    while (!ends_tag(kind == '{' ? '}' : '%')) piece.tokens.push_back(read_token());
    cut_line_ = kind == '%' && !keeps_line_;
    pieces_.push_back(std::move(piece));
  }

  /// Goes behind "}}" or "%}" and the sign before it, where one is here. A brace that closes a literal is none: those
  /// of objects are not read.
  bool ends_tag(char end) {
    at_ = std::min(source_.find_first_not_of(kBlanks, at_), source_.size());
    if (at_ == source_.size()) refuse("a tag without end");
    const std::string_view rest = source_.substr(at_);
    const std::size_t sign = rest.starts_with('-') || rest.starts_with('+') ? 1 : 0;
    if (rest.size() < sign + 2 || rest[sign] != end || rest[sign + 1] != '}') return false;
    strip_next_ = rest[0] == '-';
    keeps_line_ = rest[0] == '+';
    at_ += sign + 2;
    return true;
  }

  Token read_token() {
    const char first = source_[at_];
    if (first == '\'' || first == '"') return read_string(source_, at_);
    std::size_t end = at_;
    while (end < source_.size() && is_name(source_[end])) ++end;
    Token token{is_digit(first) ? Token::Kind::Number : Token::Kind::Name, ""};
    if (end == at_) {
      constexpr std::array<std::string_view, 6> kLong = {"==", "!=", "<=", ">=", "//", "**"};
      token.kind = Token::Kind::Sign;
      end += std::ranges::find(kLong, source_.substr(at_, 2)) == kLong.end() ? 1 : 2;
    }
    token.text = source_.substr(at_, end - at_);
    at_ = end;
    return token;
  }

  std::string_view source_;
  std::size_t at_ = 0;
  bool strip_next_ = false, cut_line_ = false, keeps_line_ = false;
  std::vector<Piece> pieces_;
};

/// Expressions of one tag, by recursive descent.
class ExpressionReader {
 public:
  explicit ExpressionReader(const std::vector<Token>& tokens) : tokens_(tokens) {}

  bool at_end() const { return at_ == tokens_.size(); }

  /// Goes on where the next token is this name or sign.
  bool take(std::string_view text) {
    const bool taken = is(text);
    at_ += taken ? 1 : 0;
    return taken;
  }

  void must_take(std::string_view text) {
    if (!take(text)) refuse(concat("no ", text, " before \"", at_end() ? "" : tokens_[at_].text, "\""));
  }

  std::string name() {
    if (at_end() || tokens_[at_].kind != Token::Kind::Name) refuse("a tag that lacks a name");
    return tokens_[at_++].text;
  }

  /// An expression; of a loop's list the "if" behind it is no part.
  Expression read(bool with_condition = true) {
    const Level level(depth_);
    Expression value = joined(Expression::Kind::Any);
    if (!with_condition || !take("if")) return value;
    Expression either = made(Expression::Kind::Either, std::move(value));
    either.parts.push_back(joined(Expression::Kind::Any));
    if (take("else")) either.parts.push_back(read());
    return either;
  }

  void must_end() const {
    if (!at_end()) refuse(concat("\"", tokens_[at_].text, "\" where a tag should end"));
  }

 private:
  struct Level {
    explicit Level(int& depth) : depth_(depth) {
      if (++depth_ > kDeepest) refuse(concat("an expression nested ", kDeepest, " deep"));
    }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    int& depth_;
  };

  static Expression made(Expression::Kind kind, Expression first) {
    Expression result;
    result.kind = kind;
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
    const Level level(depth_);
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

  /// Level 0 adds, 1 joins, 2 multiplies, as Jinja binds them.
  Expression sum(int level) {
    const auto part = [&] { return level == 2 ? signed_value() : sum(level + 1); };
    const auto sign = [&] {
      return level == 0   ? take_operator({"+", "-"})
             : level == 1 ? take_operator({"~"})
                          : take_operator({"*", "//", "/", "%"});
    };
    return chain(Expression::Kind::Sum, part, sign);
  }

  Expression signed_value() {
    const Level level(depth_);
    const bool negative = take("-");
    Expression value = negative ? signed_value() : primary();
    if (negative) value = made(Expression::Kind::Negative, std::move(value));
    for (int links = 0;; ++links) {
      if (links == kDeepest) refuse(concat("a chain of ", kDeepest, " calls"));
      if (!follow(value)) return value;
    }
  }

  /// Puts what follows a value around it: a member, a call, a filter, a test.
  bool follow(Expression& value) {
    if (take(".")) {
      value = made(Expression::Kind::Attribute, std::move(value));
      value.name = tokens_.size() > at_ && tokens_[at_].kind == Token::Kind::Number ? tokens_[at_++].text : name();
    } else if (take("[")) {
      item(value);
    } else if (take("(")) {
      value = made(Expression::Kind::Call, std::move(value));
      arguments(value);
    } else if (take("|")) {
      value = made(Expression::Kind::Filter, std::move(value));
      value.name = name();
      if (take("(")) arguments(value);
    } else if (take("is")) {
      const bool negative = take("not");
      value = made(Expression::Kind::Test, std::move(value));
      value.name = name();
      if (take("(")) arguments(value);
      if (negative) value = made(Expression::Kind::Not, std::move(value));
    } else {
      return false;
    }
    return true;
  }

  void item(Expression& value) {
    value = made(Expression::Kind::Item, std::move(value));
    value.parts.push_back(is(":") ? Expression() : read());
    if (take(":")) {
      value.kind = Expression::Kind::Slice;
      value.parts.push_back(is("]") ? Expression() : read());
    }
    must_take("]");
  }

  void arguments(Expression& call) {
    while (!take(")")) {
      if (call.parts.size() > 1) must_take(",");
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
    if (at_end()) refuse("a tag that lacks a value");
    Expression result;
    if (take("(")) {
      result = read();
      must_take(")");
      return result;
    }
    if (take("[")) {
      result.kind = Expression::Kind::List;
      while (!take("]")) {
        if (!result.parts.empty()) must_take(",");
        result.parts.push_back(read());
      }
      return result;
    }
    const Token& token = tokens_[at_++];
    if (token.kind == Token::Kind::Sign) refuse(concat("\"", token.text, "\" where a value should be"));
    if (token.kind == Token::Kind::String) {
      result.value = token.text;
      while (!at_end() && tokens_[at_].kind == Token::Kind::String)  // neighbours are one
        result.value.get_ref<std::string&>() += tokens_[at_++].text;
    } else if (token.kind == Token::Kind::Number) {
      std::int32_t number = 0;
      const auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
      if (error != std::errc() || *end != '\0') refuse(concat("the number ", token.text));
      result.value = number;
    } else if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
      result.value = token.text.size() == 4;
    } else if (token.text != "none" && token.text != "None") {
      result.kind = Expression::Kind::Name;
      result.name = token.text;
    }
    return result;
  }

  const std::vector<Token>& tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

class StatementReader {
 public:
  explicit StatementReader(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  std::vector<Statement> read() {
    std::vector<Statement> all = body({});
    if (at_ < pieces_.size()) refuse(concat("\"", word(), "\" without its beginning"));
    return all;
  }

 private:
  std::string word() const { return pieces_[at_].tokens.empty() ? "" : pieces_[at_].tokens[0].text; }

  /// Statements up to a block that begins with one of `ends`.
  std::vector<Statement> body(std::initializer_list<std::string_view> ends) {
    if (++depth_ > kDeepest) refuse(concat("blocks nested ", kDeepest, " deep"));
    std::vector<Statement> all;
    for (; at_ < pieces_.size(); ++at_) {
      const Piece& piece = pieces_[at_];
      if (piece.kind == Piece::Kind::Block && std::ranges::find(ends, word()) != ends.end()) break;
      if (piece.kind == Piece::Kind::Text) {
        all.emplace_back().name = piece.text;
      } else if (piece.kind == Piece::Kind::Output) {
        ExpressionReader reader(piece.tokens);
        Statement& output = all.emplace_back();
        output.kind = Statement::Kind::Output;
        output.expressions.push_back(reader.read());
        reader.must_end();
      } else {
        const std::string begins = word();
        if (begins.starts_with("end") || begins.starts_with("el")) break;
        all.push_back(block(begins));
      }
    }
    if (ends.size() > 0 && (at_ == pieces_.size() || std::ranges::find(ends, word()) == ends.end()))
      refuse("a block without its end");
    --depth_;
    return all;
  }

  Statement block(const std::string& begins) {
    Statement result;
    ExpressionReader reader(pieces_[at_].tokens);
    reader.must_take(begins);
    if (begins == "set") {
      result.kind = Statement::Kind::Set;
      result.names.push_back(reader.name());
      if (reader.take(".")) result.names.push_back(reader.name());
      reader.must_take("=");
      result.expressions.push_back(reader.read());
    } else if (begins == "for") {
      result.kind = Statement::Kind::For;
      result.names.push_back(reader.name());
      if (reader.take(",")) result.names.push_back(reader.name());
      reader.must_take("in");
      result.expressions.push_back(reader.read(/*with_condition=*/false));
      if (reader.take("if")) result.expressions.push_back(reader.read());
      ++at_;
      result.bodies.push_back(body({"endfor"}));
    } else if (begins == "if") {
      result.kind = Statement::Kind::If;
      result.expressions.push_back(reader.read());
      reader.must_end();
      branches(result);
      return result;
    } else {
      refuse(concat("the statement \"", begins, "\""));
    }
    reader.must_end();
    return result;
  }

  void branches(Statement& result) {
    for (;;) {
      ++at_;
      const bool is_else = result.bodies.size() == result.expressions.size();
      result.bodies.push_back(is_else ? body({"endif"}) : body({"elif", "else", "endif"}));
      if (word() == "endif") return;
      if (word() != "elif") continue;
      ExpressionReader reader(pieces_[at_].tokens);
      reader.must_take("elif");
      result.expressions.push_back(reader.read());
      reader.must_end();
    }
  }

  std::vector<Piece> pieces_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<JinjaStatement> parse_jinja(std::string_view source) {
  return StatementReader(Scanner(source).pieces()).read();
}

}  // namespace megatron::text
