// Any bytes are a request or an ApiError 400; a schema in it is a grammar, or one too; a text of the grammar is JSON.
// Any bytes are an answer with calls or without, the same however they come.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/serve/api/api_error.h"
#include "megatron/serve/api/request.h"
#include "megatron/serve/grammar/json_schema.h"
#include "megatron/serve/grammar/tool_grammar.h"
#include "megatron/serve/tools/tool_call_parser.h"

namespace {

using namespace megatron;

serve::ToolPiece answer_of(const serve::ToolSyntax& syntax, std::string_view text, std::size_t cut) {
  serve::ToolCallParser parser(
      {.syntax = &syntax, .names = {"f"}, .live = cut % 2 > 0, .new_id = [](std::size_t) { return "id"; }});
  serve::ToolPiece all = parser.push(text.substr(0, cut / 2));
  all.add(parser.push(text.substr(cut / 2)));
  all.add(parser.finish());
  return all;
}

void read_answer(std::string_view text) {
  for (const serve::ToolSyntax& syntax : serve::tool_syntaxes())
    for (std::size_t live = 0; live < 2; ++live) {
      const auto whole = answer_of(syntax, text, live), cut = answer_of(syntax, text, 2 * (text.size() / 2) + live);
      if (whole.text != cut.text || whole.calls.size() != cut.calls.size()) std::abort();
      if (whole.calls.empty() && whole.text != text) std::abort();
      for (std::size_t i = 0; i < whole.calls.size(); ++i) {
        if (whole.calls[i].arguments != cut.calls[i].arguments) std::abort();
        if (live == 0 && !nlohmann::json::parse(whole.calls[i].arguments).is_object()) std::abort();
      }
    }
}

void write_tools(const serve::ToolUse& use) {
  const serve::TokenTrie trie(std::vector<std::string>{"a"});
  for (const serve::ToolSyntax& syntax : serve::tool_syntaxes()) {
    const serve::Grammar grammar = serve::tool_grammar(syntax, use, nullptr, trie);
    serve::GrammarAutomaton automaton(grammar);
  }
}

void write_text(const nlohmann::ordered_json& schema, std::uint8_t draw) {
  const serve::Grammar grammar = serve::grammar_of_schema(schema);
  serve::GrammarAutomaton automaton(grammar);
  std::int32_t state = automaton.start();
  std::string text;
  for (int i = 0; i < 200 && !automaton.accepts(state); ++i) {
    std::int32_t next = serve::GrammarAutomaton::kDead;
    std::uint8_t byte = draw;
    if (i > 30)  // drawn strings rarely end, and only a text that is whole can be checked
      for (const char* end = "\"}]"; *end != '\0' && next == serve::GrammarAutomaton::kDead; ++end)
        next = automaton.next(state, byte = static_cast<std::uint8_t>(*end));
    if (next == serve::GrammarAutomaton::kDead) byte = draw;
    for (int k = 0; k < 256 && next == serve::GrammarAutomaton::kDead; ++k) next = automaton.next(state, ++byte);
    if (next == serve::GrammarAutomaton::kDead) std::abort();  // a text that nothing can complete
    text += static_cast<char>(byte);
    state = next;
    draw = static_cast<std::uint8_t>(draw * 5 + 1);
  }
  if (automaton.accepts(state) && !nlohmann::json::accept(text)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const auto parse : {serve::parse_completion, serve::parse_chat}) try {
      const serve::Request request = parse(body, {});
      if (request.schema) write_text(*request.schema, size > 0 ? data[size / 2] : 0);
      if (request.tools.choice != serve::ToolChoice::None) write_tools(request.tools);
    } catch (const serve::ApiError& error) {
      if (error.status != 400 || serve::error_json(error).empty()) std::abort();
    }
  read_answer(body);
  try {
    if (serve::parse_embedding(body).inputs.empty()) std::abort();
  } catch (const serve::ApiError& error) {
    if (error.status != 400) std::abort();
  }
  return 0;
}
