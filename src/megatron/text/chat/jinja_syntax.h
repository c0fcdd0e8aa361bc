#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

// A Jinja template as a tree (Jinja's template designer documentation). jinja.h renders it.
namespace megatron::text {

struct JinjaExpression {
  enum class Kind : std::uint8_t {
    Literal,    ///< `value`
    Name,       ///< `name`
    List,       ///< `parts`
    Sum,        ///< parts[0] OPERATORS[0] parts[1] …: + - ~ * / // %
    Compare,    ///< the same: == != < > <= >= in not in
    All,        ///< `parts` joined by "and"
    Any,        ///< `parts` joined by "or"
    Not,        ///< of parts[0]
    Negative,   ///< of parts[0]
    Either,     ///< parts[0] if parts[1] else parts[2]; without parts[2] undefined
    Attribute,  ///< parts[0].name
    Item,       ///< parts[0][parts[1]]
    Slice,      ///< parts[0][parts[1]:parts[2]], either may be the literal null
    Call,       ///< parts[0](parts[1] …); `operators` has the name of each argument, or ""
    Filter,     ///< parts[0] | name(parts[1] …)
    Test,       ///< parts[0] is name(parts[1] …)
  };
  Kind kind = Kind::Literal;
  std::string name;
  nlohmann::json value;
  std::vector<JinjaExpression> parts;
  std::vector<std::string> operators;  ///< Of Call, Filter and Test the names of the arguments.
};

struct JinjaStatement {
  enum class Kind : std::uint8_t {
    Text,    ///< `name` as it is
    Output,  ///< {{ expressions[0] }}
    If,      ///< bodies[i] where expressions[i] is true; the last body may be without: else
    For,     ///< bodies[0] with names[0] each item of expressions[0], which may be filtered by expressions[1]
    Set,     ///< names[0] = expressions[0]; with names[1] its member
  };
  Kind kind = Kind::Text;
  std::string name;
  std::vector<std::string> names;
  std::vector<JinjaExpression> expressions;
  std::vector<std::vector<JinjaStatement>> bodies;
};

/// Reads a template as transformers does: trim_blocks and lstrip_blocks are on. Nesting is limited, so that what walks
/// the tree may recurse. Throws ConfigError for what is no template, or has statements beyond if, for and set.
std::vector<JinjaStatement> parse_jinja(std::string_view source);

}  // namespace megatron::text
