#include "megatron/text/chat/jinja_syntax.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/text/chat/expression_reader.h"
#include "megatron/text/chat/scan.h"

namespace megatron::text {
namespace {

using Expression = JinjaExpression;
using Statement = JinjaStatement;

constexpr int kDeepestBlock = 100;  // published templates nest ten deep

bool mentions(const Expression& expression, std::string_view name) {
  return (expression.kind == Expression::Kind::Name && expression.name == name) ||
         std::ranges::any_of(expression.parts, [&](const Expression& part) { return mentions(part, name); });
}

/// Whether a variable of this name is read.
bool mentions(const std::vector<Statement>& body, std::string_view name) {
  return std::ranges::any_of(body, [&](const Statement& statement) {
    const auto in_one = [&](const Expression& expression) { return mentions(expression, name); };
    return statement.kind != Statement::Kind::Block &&
           (std::ranges::any_of(statement.expressions, in_one) || std::ranges::any_of(statement.defaults, in_one) ||
            std::ranges::any_of(statement.bodies, [&](const auto& part) { return mentions(part, name); }));
  });
}

class StatementReader {
 public:
  explicit StatementReader(std::vector<JinjaPiece> pieces) : pieces_(std::move(pieces)) {}

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
    if (++depth_ > kDeepestBlock) refuse_jinja(begin, concat("blocks nested ", kDeepestBlock, " deep"));
    std::vector<Statement> all;
    for (; at_ < pieces_.size(); ++at_) {
      const JinjaPiece& piece = pieces_[at_];
      const std::string begins = piece.kind == JinjaPiece::Kind::Block ? word() : "";
      if (piece.kind == JinjaPiece::Kind::Block && (begins.starts_with("end") || begins == "elif" || begins == "else"))
        break;
      Statement statement;
      if (piece.kind == JinjaPiece::Kind::Text) {
        statement.name = piece.text;
      } else if (piece.kind == JinjaPiece::Kind::Output) {
        JinjaExpressionReader reader(piece);
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

  /// What the block that begins here holds, up to its end: {% end %}, or {% end name %}.
  void inside(Statement& result, std::initializer_list<std::string_view> ends, std::string_view name = "") {
    ++at_;
    result.bodies.push_back(body(ends));
    if (word() == "elif") return;
    JinjaExpressionReader reader(pieces_[at_]);
    reader.must_take(word());
    if (!name.empty()) reader.take(name);
    reader.must_end(/*before_body=*/word() == "else");
  }

  Statement block(const std::string& begins) {
    Statement result;
    const JinjaPiece& piece = pieces_[at_];
    JinjaExpressionReader reader(piece);
    if (begins == "for" || begins == "set" || begins == "if" || begins == "macro" || begins == "call" ||
        begins == "with" || begins == "filter" || begins == "block" || begins == "print" || begins == "generation" ||
        begins == "break" || begins == "continue")
      reader.must_take(begins);
    if (begins == "set") {
      set(result, reader);
    } else if (begins == "for") {
      loop(result, reader);
    } else if (begins == "if") {
      result.kind = Statement::Kind::If;
      result.expressions.push_back(reader.read_tuple(/*with_condition=*/true));
      reader.must_end(/*before_body=*/true);
      branches(result);
    } else if (begins == "macro") {
      result.kind = Statement::Kind::Macro;
      result.name = reader.target_name();
      reader.must_take("(");
      read_signature(result, reader);
      reader.must_end(/*before_body=*/true);
      function(result, "endmacro");
    } else if (begins == "call") {
      call(result, reader);
    } else if (begins == "with") {
      with(result, reader);
    } else if (begins == "filter") {
      result.kind = Statement::Kind::Filter;
      result.expressions.push_back(reader.filters(/*at_least_one=*/true));
      reader.must_end(/*before_body=*/true);
      inside(result, {"endfilter"});
    } else if (begins == "block") {
      named_block(result, reader);
    } else if (begins == "print") {
      result.kind = Statement::Kind::Output;
      do result.expressions.push_back(reader.read());
      while (reader.take(","));
      reader.must_end();
    } else if (begins == "generation") {
      reader.must_end(/*before_body=*/true);
      result.kind = Statement::Kind::Generation;
      outside_of_loops([&] { inside(result, {"endgeneration"}); });
    } else if (begins == "break" || begins == "continue") {
      reader.must_end();
      if (loops_ == 0) refuse_jinja(piece.line, concat("\"", begins, "\" outside of a loop"));
      result.kind = begins == "break" ? Statement::Kind::Break : Statement::Kind::Continue;
    } else {
      refuse_jinja(piece.line, concat("the statement \"", begins, "\""));
    }
    return result;
  }

  /// What is compiled to a function in Python: no loop around it can be left from there.
  template <class Read>
  void outside_of_loops(const Read& read) {
    const int outside = std::exchange(loops_, 0);
    read();
    loops_ = outside;
  }

  void set(Statement& result, JinjaExpressionReader& reader) {
    result.kind = Statement::Kind::Set;
    result.target = reader.targets(/*with_members=*/true);
    if (reader.take("=")) {
      result.expressions.push_back(reader.read_tuple());
      reader.must_end();
      return;
    }
    result.kind = Statement::Kind::SetBlock;
    result.expressions.push_back(reader.filters(/*at_least_one=*/false));
    reader.must_end(/*before_body=*/true);
    inside(result, {"endset"});
  }

  void loop(Statement& result, JinjaExpressionReader& reader) {
    result.kind = Statement::Kind::For;
    const int line = reader.line();
    result.target = reader.targets(/*with_members=*/false);
    if (gives(result.target, "loop")) refuse_jinja(line, "a loop over the variable \"loop\"");
    reader.must_take("in");
    result.expressions.push_back(reader.read_tuple(/*with_condition=*/false));
    if (reader.take("if")) result.expressions.push_back(reader.read());
    if (reader.take("recursive")) result.words.emplace_back("recursive");
    reader.must_end(/*before_body=*/true);
    ++loops_;
    inside(result, {"else", "endfor"});
    --loops_;
    if (word() != "else") return;
    if (result.words.empty())
      inside(result, {"endfor"});
    else
      outside_of_loops([&] { inside(result, {"endfor"}); });
  }

  static bool gives(const Expression& target, std::string_view name) {
    return target.kind == Expression::Kind::Tuple
               ? std::ranges::any_of(target.parts, [&](const Expression& part) { return gives(part, name); })
               : target.kind == Expression::Kind::Name && target.name == name;
  }

  /// The names and defaults of a macro or of what a call hands over, behind the bracket.
  static void read_signature(Statement& result, JinjaExpressionReader& reader) {
    while (!reader.take(")")) {
      if (!result.names.empty()) reader.must_take(",");
      if (reader.take(")")) break;
      result.names.push_back(reader.target_name());
      if (reader.take("="))
        result.defaults.push_back(reader.read());
      else if (!result.defaults.empty())
        refuse_jinja(reader.line(), "an argument of a macro without default behind one that has it");
    }
  }

  void function(Statement& result, std::string_view end) {
    outside_of_loops([&] { inside(result, {end}); });
    for (const char* special : {"caller", "kwargs", "varargs"})
      if (std::ranges::find(result.names, special) == result.names.end() && mentions(result.bodies[0], special))
        result.words.emplace_back(special);
  }

  void call(Statement& result, JinjaExpressionReader& reader) {
    result.kind = Statement::Kind::Call;
    result.name = "caller";
    const int line = reader.line();
    if (reader.take("(")) read_signature(result, reader);
    result.expressions.push_back(reader.read());
    if (result.expressions[0].kind != Expression::Kind::Call) refuse_jinja(line, "\"call\" of what is no call");
    reader.must_end(/*before_body=*/true);
    function(result, "endcall");
  }

  void with(Statement& result, JinjaExpressionReader& reader) {
    result.kind = Statement::Kind::With;
    result.target.kind = Expression::Kind::Tuple;
    while (!reader.at_end()) {
      if (!result.expressions.empty()) reader.must_take(",");
      result.target.parts.push_back(reader.targets(/*with_members=*/false));
      reader.must_take("=");
      result.expressions.push_back(reader.read());
    }
    inside(result, {"endwith"});
  }

  void named_block(Statement& result, JinjaExpressionReader& reader) {
    result.kind = Statement::Kind::Block;
    const int line = reader.line();
    result.name = reader.name();
    if (!blocks_.insert(result.name).second) refuse_jinja(line, concat("the block \"", result.name, "\" twice"));
    if (reader.take("scoped")) result.words.emplace_back("scoped");
    reader.must_end(/*before_body=*/true);
    outside_of_loops([&] { inside(result, {"endblock"}, result.name); });
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
      JinjaExpressionReader reader(pieces_[at_]);
      reader.must_take("elif");
      result.expressions.push_back(reader.read_tuple());
      reader.must_end(/*before_body=*/true);
    }
  }

  std::vector<JinjaPiece> pieces_;
  std::size_t at_ = 0;
  std::set<std::string> blocks_;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

bool JinjaStatement::has_word(std::string_view word) const { return std::ranges::find(words, word) != words.end(); }

std::vector<JinjaStatement> parse_jinja(std::string_view source) { return StatementReader(scan_jinja(source)).read(); }

}  // namespace megatron::text
