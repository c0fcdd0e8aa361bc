#include "megatron/serve/grammar/tool_grammar.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/serve/api/api_error.h"
#include "megatron/serve/grammar/grammar_builder.h"
#include "megatron/serve/grammar/json_schema.h"

namespace megatron::serve {
namespace {

using Ordered = nlohmann::ordered_json;
using Sequence = Grammar::Sequence;

ApiError error_of_tool(std::size_t tool, const std::string& what) {
  const std::string path = concat("tools[", tool, "].function.parameters");
  return {400, concat("'", path, "': ", what), path, "invalid_json_schema"};
}

constexpr const char* kObjectsAlone = "arguments are an object: \"type\": \"object\"";

/// What the arguments of a tool must satisfy, an object in any case.
Ordered arguments_schema(const ToolUse& use, std::size_t number) {
  const Tool& tool = use.tools[number];
  if (use.choice == ToolChoice::Auto && !tool.strict) return {{"type", "object"}};
  if (tool.parameters.is_null()) return {{"type", "object"}, {"additionalProperties", false}};
  Ordered schema = tool.parameters;
  const auto says = [&](const char* keyword) { return schema.contains(keyword); };
  if (!says("type") && !says("$ref") && !says("anyOf") && !says("oneOf") && !says("allOf") && !says("enum") &&
      !says("const"))
    schema["type"] = "object";
  if (says("type") && schema["type"] != "object") throw error_of_tool(number, kObjectsAlone);
  return schema;
}

/// Whether every text of a rule begins with {. No alternative is empty at its front: JSON has no empty texts.
bool begins_with_brace(const Grammar& grammar, std::int32_t rule) {
  std::vector<std::int32_t> left = {rule};
  std::set<std::int32_t> seen = {rule};
  while (!left.empty()) {
    const std::vector<std::uint32_t>& alternatives = grammar.alternatives(left.back());
    left.pop_back();
    for (const std::uint32_t at : alternatives) {
      const Grammar::Place& first = grammar.at(at);
      if (first.kind == Grammar::Kind::Rule && seen.insert(first.rule).second) left.push_back(first.rule);
      if (first.kind == Grammar::Kind::End) return false;
      if (first.kind == Grammar::Kind::Bytes && grammar.set(first) != any_byte_of("{")) return false;
    }
  }
  return true;
}

/// The places in `use.tools` of those that may be called.
std::vector<std::size_t> callable(const ToolUse& use) {
  if (use.choice == ToolChoice::Function) return {use.function};
  std::vector<std::size_t> all(use.tools.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

class Answers {
 public:
  Answers(const ToolSyntax& syntax, const ToolUse& use, const TokenTrie& trie)
      : syntax_(syntax),
        use_(use),
        opening_(trie.spelled(syntax.opening)),
        closing_(trie.spelled(syntax.closing)),
        many_(use.parallel && use.choice != ToolChoice::Function && syntax.many()) {}

  Grammar compile(const Ordered* schema) {
    const std::int32_t start = grammar_.add_rule();
    const std::vector<std::size_t> tools = callable(use_);
    std::vector<Ordered> parameters;
    for (const std::size_t tool : tools) parameters.push_back(arguments_schema(use_, tool));
    std::vector<const Ordered*> schemas;
    for (const Ordered& one : parameters) schemas.push_back(&one);
    if (schema != nullptr) schemas.push_back(schema);
    const auto named = [&](std::size_t number, const ApiError& error) {
      return number < tools.size() ? error_of_tool(tools[number], error.what()) : error;
    };
    const std::vector<std::int32_t> rules = add_schemas(grammar_, schemas, named);
    std::vector<Sequence> objects;
    for (std::size_t i = 0; i < tools.size(); ++i)
      objects.push_back(
          joined({literal(concat("\"name\": \"", use_.tools[tools[i]].name, "\", \"", syntax_.arguments, "\": ")),
                  {Grammar::rule(rules[i])},
                  literal("}")}));
    members_ = grammar_.rule_with(objects);
    if (use_.choice == ToolChoice::Auto && schema == nullptr) {
      grammar_.add(start, {Grammar::rule(syntax_.opening.empty() ? beginning() : text_with_calls())});
    } else {
      grammar_.add(start, {Grammar::rule(calls())});
      if (schema != nullptr) grammar_.add(start, {Grammar::rule(rules.back())});
    }
    Grammar grammar = grammar_.take();
    bool sound = !grammar.left_recursive();
    if (sound) grammar.leave_out_endless();
    for (const std::int32_t rule : rules) sound = sound && !grammar.alternatives(rule).empty();
    // Each by itself says what it is: all of them together were not too large.
    for (std::size_t i = 0; i < schemas.size() && !sound; ++i) try {
        grammar_of_schema(*schemas[i]);
      } catch (const ApiError& error) {
        throw named(i, error);
      }
    for (std::size_t i = 0; i < tools.size(); ++i)
      if (!begins_with_brace(grammar, rules[i])) throw error_of_tool(tools[i], kObjectsAlone);
    return grammar;
  }

 private:
  Sequence object() const { return {Grammar::byte('{'), Grammar::rule(members_)}; }

  /// What follows an opening.
  std::int32_t opened() {
    if (!syntax_.list)
      return grammar_.rule_with(
          {joined({literal(syntax_.space), object(), literal(syntax_.space), literal(closing_)})});
    const std::int32_t more = grammar_.rule_with({{}}), gap = grammar_.rule_with({{}, literal(" ")});
    if (many_) grammar_.add(more, joined({literal(", "), object(), {Grammar::rule(more)}}));
    return grammar_.rule_with({joined({{Grammar::rule(gap), Grammar::byte('[')},
                                       object(),
                                       {Grammar::rule(more), Grammar::byte(']')},
                                       literal(closing_)})});
  }

  std::int32_t calls() {
    if (syntax_.opening.empty()) return grammar_.rule_with({object()});
    const Sequence one = joined({literal(opening_), {Grammar::rule(opened())}});
    const std::int32_t more = grammar_.rule_with({{}});
    if (many_ && !syntax_.list) grammar_.add(more, joined({literal(syntax_.space), one, {Grammar::rule(more)}}));
    return grammar_.rule_with({joined({one, {Grammar::rule(more)}})});
  }

  /// A text, of which as many bytes of the opening as the number of its state says have just been written.
  std::int32_t text_with_calls() {
    const std::string_view opening = syntax_.opening;
    std::vector<std::int32_t> states;
    for (std::size_t i = 0; i < opening.size(); ++i) states.push_back(grammar_.rule_with({{}}));
    Sequence call = {Grammar::rule(opened())};
    if (many_) call.push_back(Grammar::rule(states[0]));
    for (std::size_t i = 0; i < opening.size(); ++i) {
      std::map<std::size_t, ByteSet> next;
      for (int byte = 0; byte < 256; ++byte) {
        const std::string written = std::string(opening.substr(0, i)) + static_cast<char>(byte);
        std::size_t count = written.size();
        while (!opening.starts_with(std::string_view(written).substr(written.size() - count))) --count;
        next[count].set(static_cast<std::size_t>(byte));
      }
      for (const auto& [count, bytes] : next)
        grammar_.add(states[i], joined({{Grammar::bytes(bytes)},
                                        count == opening.size() ? call : Sequence{Grammar::rule(states[count])}}));
    }
    return states[0];
  }

  /// A text that is a call where it begins with {, behind white space and the syntax's prefix.
  std::int32_t beginning() {
    const std::int32_t any = grammar_.rule_with({{}});
    grammar_.add(any, {Grammar::bytes(bytes_from(0, 255)), Grammar::rule(any)});
    const auto others = [&](const ByteSet& known) { return Sequence{Grammar::bytes(~known), Grammar::rule(any)}; };
    const ByteSet space = any_byte_of(" \n\t\r") | any_byte_of({&kSpecialTokenMark, 1}), brace = any_byte_of("{");
    const std::int32_t behind = grammar_.rule_with({{}, joined({object()}), others(space | brace)});
    grammar_.add(behind, {Grammar::bytes(space), Grammar::rule(behind)});
    std::int32_t next = behind;
    for (std::size_t i = syntax_.prefix.size(); i-- > 1;) {
      const ByteSet expected = any_byte_of(syntax_.prefix.substr(i, 1));
      next = grammar_.rule_with({{}, {Grammar::bytes(expected), Grammar::rule(next)}, others(expected)});
    }
    const ByteSet first = any_byte_of(syntax_.prefix.substr(0, 1));
    const std::int32_t begin = grammar_.rule_with({{}, object(), others(space | brace | first)});
    grammar_.add(begin, {Grammar::bytes(space), Grammar::rule(begin)});
    grammar_.add(begin, {Grammar::bytes(first), Grammar::rule(next)});
    return begin;
  }

  const ToolSyntax& syntax_;
  const ToolUse& use_;
  std::string opening_, closing_;
  bool many_;
  GrammarBuilder grammar_;
  std::int32_t members_ = 0;  ///< of a call's object, behind its bracket
};

}  // namespace

bool needs_tool_grammar(const ToolUse& use, bool has_schema) {
  if (use.choice == ToolChoice::None) return false;
  return use.choice != ToolChoice::Auto || has_schema || std::ranges::any_of(use.tools, &Tool::strict);
}

Grammar tool_grammar(const ToolSyntax& syntax, const ToolUse& use, const Ordered* schema, const TokenTrie& trie) {
  return Answers(syntax, use, trie).compile(schema);
}

}  // namespace megatron::serve
