#include "megatron/serve/grammar/tool_grammar.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
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
      const Grammar::Node& first = grammar.at(at);
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
  Answers(const ToolSyntax& syntax, const ToolUse& use, const TokenTrie& trie, Thinking thinking)
      : syntax_(syntax),
        use_(use),
        opening_(trie.spelled(syntax.opening)),
        closing_(trie.spelled(syntax.closing)),
        thinking_opening_(trie.spelled(kThinkingOpening)),
        thinking_(syntax.opening.empty() ? Thinking::None : thinking),
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
      const Sequence called = {Grammar::rule(calls())};
      if (thinking_ != Thinking::Begun || schema != nullptr) grammar_.add(start, called);
      if (thinking_ != Thinking::None && schema == nullptr)
        grammar_.add(start, joined({thinking_ == Thinking::Possible ? literal(thinking_opening_) : Sequence(),
                                    {Grammar::rule(thoughts_before(called))}}));
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

  /// Bytes that end free text, and the grammar that follows them; without one, free text may not contain them.
  struct Mark {
    std::string_view bytes;
    std::optional<Sequence> then;
  };

  /// Adds to `start` any text up to one of the marks, none of which begins within another, with what follows that.
  void add_text_up_to(std::int32_t start, const std::vector<Mark>& marks, bool may_end) {
    // A state for each beginning of a mark that has just been written.
    std::map<std::string, std::int32_t> states = {{"", start}};
    for (const Mark& mark : marks)
      for (std::size_t count = 1; count < mark.bytes.size(); ++count) {
        std::int32_t& state = states[std::string(mark.bytes.substr(0, count))];
        if (state == 0) state = grammar_.add_rule();
      }
    for (const auto& [before, state] : states) {
      std::map<std::string, ByteSet> next;
      for (int byte = 0; byte < 256; ++byte) {
        std::string written = before + static_cast<char>(byte);
        const auto is_mark = [&](const Mark& mark) { return written == mark.bytes; };
        while (!states.contains(written) && std::ranges::none_of(marks, is_mark)) written.erase(0, 1);
        next[written].set(static_cast<std::size_t>(byte));
      }
      if (may_end) grammar_.add(state, {});
      for (const auto& [written, bytes] : next) {
        const auto mark = std::ranges::find(marks, written, &Mark::bytes);
        if (mark == marks.end())
          grammar_.add(state, {Grammar::bytes(bytes), Grammar::rule(states.at(written))});
        else if (mark->then)
          grammar_.add(state, joined({{Grammar::bytes(bytes)}, *mark->then}));
      }
    }
  }

  /// Any text, in which an opening is followed by a call.
  std::int32_t text_with_calls() {
    const std::int32_t start = grammar_.add_rule();
    Sequence call = {Grammar::rule(opened())};
    if (many_) call.push_back(Grammar::rule(start));
    add_text_up_to(start, {{syntax_.opening, call}}, true);
    return start;
  }

  /// What is thought, behind its opening, and then `answer`.
  std::int32_t thoughts_before(const Sequence& answer) {
    constexpr std::int64_t kMaxSpace = 8;
    const std::int32_t start = grammar_.add_rule();
    const std::int32_t space = grammar_.repeated({Grammar::bytes(any_byte_of(" \n\t\r"))}, 0, kMaxSpace);
    add_text_up_to(start, {{kThinkingClosing, joined({{Grammar::rule(space)}, answer})}, {syntax_.opening, {}}}, false);
    return start;
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
  std::string opening_, closing_, thinking_opening_;
  Thinking thinking_;
  bool many_;
  GrammarBuilder grammar_;
  std::int32_t members_ = 0;  ///< of a call's object, behind its bracket
};

}  // namespace

bool needs_tool_grammar(const ToolUse& use, bool has_schema) {
  if (use.choice == ToolChoice::None) return false;
  return use.choice != ToolChoice::Auto || has_schema || std::ranges::any_of(use.tools, &Tool::strict);
}

Grammar tool_grammar(const ToolSyntax& syntax, const ToolUse& use, const Ordered* schema, const TokenTrie& trie,
                     Thinking thinking) {
  return Answers(syntax, use, trie, thinking).compile(schema);
}

}  // namespace megatron::serve
