#pragma once
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/chat/jinja_syntax.h"
#include "megatron/text/chat/scan.h"

namespace megatron::text {

/// Reads the expressions of one tag, by recursive descent. All that reads throws ConfigError, which names the line, for
/// what is no expression or nested too deep.
class JinjaExpressionReader {
 public:
  /// `piece` must outlive it.
  explicit JinjaExpressionReader(const JinjaPiece& piece) : tokens_(piece.tokens), line_(piece.line) {}

  bool at_end() const { return at_ == tokens_.size(); }
  int line() const { return at_end() ? (tokens_.empty() ? line_ : tokens_.back().line) : tokens_[at_].line; }
  /// Whether the next token, or the one so many behind it, is this name or sign.
  bool is(std::string_view text, std::size_t ahead = 0) const;

  /// Goes on where the next token is this name or sign.
  bool take(std::string_view text);
  void must_take(std::string_view text);
  std::string name();
  /// A name that may be given a value.
  std::string target_name();
  /// What a loop or a set gives values to: a, or a, b, or a, (b, c); with_members also ns.a.
  JinjaExpression targets(bool with_members);

  /// An expression; of a loop's list the "if" behind it is no part.
  JinjaExpression read(bool with_condition = true);
  /// An expression, or several with commas between them: a tuple.
  JinjaExpression read_tuple(bool with_condition = true);
  /// FILTER | FILTER … of what a block has written.
  JinjaExpression filters(bool at_least_one);

  /// The tag ends here; of one that a body follows a colon may stand before that.
  void must_end(bool before_body = false);

 private:
  class Level;

  JinjaExpression made(JinjaExpression::Kind kind) const;
  JinjaExpression target(bool with_members);
  JinjaExpression joined(JinjaExpression::Kind kind);
  JinjaExpression negated();
  std::string take_operator(std::initializer_list<const char*> signs);
  JinjaExpression compared();
  std::string comparison();
  JinjaExpression sum(int level);
  JinjaExpression signed_value(bool with_filters = true);
  bool follow(JinjaExpression& value, bool with_filters);
  void filter(JinjaExpression& value);
  void test(JinjaExpression& value);
  bool begins_argument() const;
  void item(JinjaExpression& value);
  void arguments(JinjaExpression& call);
  JinjaExpression primary();

  const std::vector<JinjaToken>& tokens_;
  int line_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace megatron::text
