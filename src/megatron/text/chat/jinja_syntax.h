#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/chat/python/value.h"

// A Jinja template as a tree (Jinja's template designer documentation). jinja.h renders it.
namespace megatron::text {

struct JinjaExpression {
  enum class Kind : std::uint8_t {
    Literal,    ///< `value`
    Name,       ///< `name`
    List,       ///< `parts`
    Tuple,      ///< the same
    Dict,       ///< key, value, key, value …
    Sum,        ///< parts[0] OPERATORS[0] parts[1] …: + - ~ * / // % **
    Compare,    ///< the same: == != < > <= >= in not in
    All,        ///< `parts` joined by "and"
    Any,        ///< `parts` joined by "or"
    Not,        ///< of parts[0]
    Negative,   ///< of parts[0]
    Positive,   ///< of parts[0]
    Either,     ///< parts[0] if parts[1] else parts[2]; without parts[2] undefined
    Attribute,  ///< parts[0].name
    Item,       ///< parts[0][parts[1]]
    Slice,      ///< parts[0][parts[1]:parts[2]:parts[3]], any of the three may be the literal none
    Call,       ///< parts[0](parts[1] …); `operators` has the name of each argument, "", "*" or "**"
    Filter,     ///< parts[0] | name(parts[1] …)
    Test,       ///< parts[0] is name(parts[1] …)
    Captured,   ///< what the block of a Set or Filter statement has written
  };
  Kind kind = Kind::Literal;
  int line = 0;  ///< of the template, from 1
  std::string name;
  JinjaValue value = JinjaValue::none();
  std::vector<JinjaExpression> parts;
  std::vector<std::string> operators;  ///< Of Call, Filter and Test the names of the arguments.
};

struct JinjaStatement {
  enum class Kind : std::uint8_t {
    Text,    ///< `name` as it is
    Output,  ///< {{ expressions[0] }}, and the others of {% print … %}
    If,      ///< bodies[i] where expressions[i] is true; the last body may be without: else
    For,     ///< bodies[0] with `target` each item of expressions[0], which may be filtered by expressions[1]; without
             ///< any item bodies[1], where it is
    Set,     ///< target = expressions[0]
    SetBlock,    ///< the same of what bodies[0] writes, which is Captured in expressions[0]
    With,        ///< bodies[0] with the parts of `target` each of `expressions`
    Filter,      ///< writes expressions[0] of what bodies[0] writes
    Macro,       ///< name(names …), bodies[0]; `defaults` of the last of `names`
    Call,        ///< writes the call expressions[0], whose caller(names …) is bodies[0], with `defaults` as a macro's
    Block,       ///< bodies[0], which reads no variables around it unless it is "scoped"
    Generation,  ///< bodies[0], which the assistant has written
    Break,
    Continue,
  };
  Kind kind = Kind::Text;
  int line = 0;
  std::string name;
  JinjaExpression target;  ///< what gets a value: Name, Tuple of targets, or Attribute of a namespace's Name
  std::vector<std::string> names;
  /// "recursive" of For, "scoped" of Block; of Macro and Call which of "caller", "kwargs" and "varargs" they read.
  std::vector<std::string> words;
  std::vector<JinjaExpression> expressions, defaults;
  std::vector<std::vector<JinjaStatement>> bodies;

  bool has_word(std::string_view word) const;
};

/// Reads a template as transformers does: trim_blocks and lstrip_blocks are on, with loop controls and {% generation
/// %}. Nesting is limited, so that what walks the tree may recurse. Throws ConfigError, which names the line, for what
/// is no template, or has statements beyond those above.
std::vector<JinjaStatement> parse_jinja(std::string_view source);

}  // namespace megatron::text
