#include "megatron/serve/grammar/tool_grammar.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/serve/api/api_error.h"
#include "tests/serve/syntax_named.h"

namespace megatron::serve {
namespace {

using Ordered = nlohmann::ordered_json;

ToolUse two_tools(ToolChoice choice) {
  return {.choice = choice,
          .tools = {{.name = "add",
                     .parameters = Ordered::parse(R"({"type": "object", "properties": {"a": {"type": "integer"},
                       "b": {"enum": ["x", "y"]}}, "required": ["a"]})")},
                    {.name = "now"}},
          .definitions = Ordered::array()};
}

bool takes(const Grammar& grammar, const std::string& text) {
  GrammarAutomaton automaton(grammar);
  std::int32_t state = automaton.start();
  for (const char c : text) {
    state = automaton.next(state, static_cast<std::uint8_t>(c));
    if (state == GrammarAutomaton::kDead) return false;
  }
  return automaton.accepts(state);
}

void expect_texts(const Grammar& grammar, const std::vector<std::string>& good, const std::vector<std::string>& bad) {
  for (const std::string& text : good) EXPECT_TRUE(takes(grammar, text)) << text;
  for (const std::string& text : bad) EXPECT_FALSE(takes(grammar, text)) << text;
}

const TokenTrie kNoSpecials(std::vector<std::string>{"a"});
const std::string kAdd = R"({"name": "add", "arguments": {"a": 1}})", kNow = R"({"name": "now", "arguments": {}})";

std::string hermes(const std::string& object) { return "<tool_call>\n" + object + "\n</tool_call>"; }

TEST(ToolGrammar, IsCallsThatAreAskedFor) {
  ToolUse use = two_tools(ToolChoice::Required);
  expect_texts(
      tool_grammar(syntax_named("Hermes"), use, nullptr, kNoSpecials),
      {hermes(kAdd), hermes(kNow), hermes(kAdd) + "\n" + hermes(kNow),
       hermes(R"({"name": "add", "arguments": {"a": -2, "b": "y"}})")},
      {"", "a", kAdd, hermes(R"({"name": "sub", "arguments": {}})"), hermes(R"({"name": "add", "arguments": {}})"),
       hermes(R"({"name": "add", "arguments": {"a": 1, "b": "z"}})"),
       hermes(R"({"name": "now", "arguments": {"a": 1}})"), hermes(kAdd) + " a", hermes(kAdd) + hermes(kNow)});
  expect_texts(tool_grammar(syntax_named("Mistral"), use, nullptr, kNoSpecials),
               {"[TOOL_CALLS][" + kAdd + "]", "[TOOL_CALLS] [" + kAdd + ", " + kNow + "]"},
               {"[TOOL_CALLS]" + kAdd, "[TOOL_CALLS][]", "[" + kAdd + "]", "[TOOL_CALLS][" + kAdd + ", ]"});
  const std::string add = R"({"name": "add", "parameters": {"a": 1}})";
  expect_texts(tool_grammar(syntax_named("Llama"), use, nullptr, kNoSpecials), {add},
               {add + add, add + "; " + add, kAdd, "a" + add});
  use.parallel = false;
  expect_texts(tool_grammar(syntax_named("Hermes"), use, nullptr, kNoSpecials), {hermes(kAdd)},
               {hermes(kAdd) + "\n" + hermes(kNow)});
  expect_texts(tool_grammar(syntax_named("Mistral"), use, nullptr, kNoSpecials), {"[TOOL_CALLS][" + kAdd + "]"},
               {"[TOOL_CALLS][" + kAdd + ", " + kNow + "]"});
  use = two_tools(ToolChoice::Function);
  use.function = 1;
  expect_texts(tool_grammar(syntax_named("Hermes"), use, nullptr, kNoSpecials), {hermes(kNow)},
               {hermes(kAdd), hermes(kNow) + "\n" + hermes(kNow), ""});
}

TEST(ToolGrammar, WritesMarksByTheSpecialTokensOfTheModel) {
  const TokenTrie trie(std::vector<std::string>{"a", "\xFF[TOOL_CALLS]", "[TOOL_CALLS]", "\xFF</TOOLCALL>"});
  const ToolUse use = two_tools(ToolChoice::Required);
  expect_texts(tool_grammar(syntax_named("Mistral"), use, nullptr, trie), {"\xFF[TOOL_CALLS][" + kNow + "]"},
               {"[TOOL_CALLS][" + kNow + "]"});
  expect_texts(tool_grammar(syntax_named("Nemotron"), use, nullptr, trie), {"<TOOLCALL>[" + kNow + "]\xFF</TOOLCALL>"},
               {"<TOOLCALL>[" + kNow + "]</TOOLCALL>"});
}

TEST(ToolGrammar, LetsAModelThinkBeforeTheCallsThatAreAskedFor) {
  ToolUse use = two_tools(ToolChoice::Required);
  const auto of = [&](const char* syntax, Thinking thinking) {
    return tool_grammar(syntax_named(syntax), use, nullptr, kNoSpecials, thinking);
  };
  const std::string calls = hermes(kAdd) + "\n" + hermes(kNow);
  expect_texts(of("Hermes", Thinking::Possible),
               {calls, "<think>\nWhich?\n</think>\n\n" + calls, "<think></think>" + calls,
                "<think></think</thin <tool_call \xFF<|x|>{</think>" + calls},
               {"", "Which?</think>" + calls, "<think>Which?", "<think>Which?</think>", "<think>Which?" + calls,
                "<think></think>So " + calls, "<think>" + hermes(kAdd) + "</think>" + calls,
                "\n<think></think>" + calls, calls + "<think></think>" + calls});
  expect_texts(of("Hermes", Thinking::Begun), {"Which?\n</think>\n\n" + calls, "</think>" + calls},
               {calls, "<think>" + calls, "Which?</think>", ""});
  expect_texts(of("Hermes", Thinking::None), {calls}, {"<think></think>" + calls, "</think>" + calls});
  expect_texts(of("Mistral", Thinking::Possible), {"<think>a</think>[TOOL_CALLS][" + kAdd + "]"}, {"<think>a</think>"});
  const std::string add = R"({"name": "add", "parameters": {"a": 1}})";  // it is one at the beginning alone
  expect_texts(of("Llama", Thinking::Possible), {add}, {"<think>a</think>" + add});
  use = two_tools(ToolChoice::Function);
  expect_texts(of("Hermes", Thinking::Possible), {"<think>a</think>" + hermes(kAdd)},
               {"<think>a</think>" + hermes(kNow), "<think>a</think>" + calls});
  use = two_tools(ToolChoice::Required);
  const TokenTrie trie(std::vector<std::string>{"a", "\xFF<think>", "\xFF</think>"});
  expect_texts(tool_grammar(syntax_named("Hermes"), use, nullptr, trie, Thinking::Possible),
               {"\xFF<think>a\xFF</think>\n" + calls, calls}, {"<think>a</think>\n" + calls});
  const Ordered schema = {{"type", "boolean"}};
  use = two_tools(ToolChoice::Auto);  // what is no call is the schema's alone
  expect_texts(tool_grammar(syntax_named("Hermes"), use, &schema, kNoSpecials, Thinking::Begun), {"true", hermes(kNow)},
               {"</think>true"});
}

TEST(ToolGrammar, LetsAnyTextBeWhereOnlyStrictToolsAreKeptTo) {
  ToolUse use = two_tools(ToolChoice::Auto);
  EXPECT_FALSE(needs_tool_grammar(use, false));
  EXPECT_TRUE(needs_tool_grammar(use, true));
  use.tools[0].strict = true;
  EXPECT_TRUE(needs_tool_grammar(use, false));
  const std::string any = hermes(R"({"name": "now", "arguments": {"x": [1, {}]}})");
  const Grammar grammar = tool_grammar(syntax_named("Hermes"), use, nullptr, kNoSpecials);
  expect_texts(
      grammar,
      {"", "hi", "<tool_call <tool<tool_cal> {", "\xFF<|think|>ä", hermes(kAdd), "a" + hermes(kAdd) + "b" + any, any},
      {"<tool_call>", "a <tool_call>x", "<<tool_call>\n{\"name\": \"no", hermes(R"({"name": "add", "arguments": {}})"),
       hermes(kAdd) + "<tool_call>x"});
  const Grammar list = tool_grammar(syntax_named("Mistral"), use, nullptr, kNoSpecials);
  expect_texts(
      list, {"[[TOOL_CALLS][" + kAdd + "] [TOOL_CALLS][" + kNow + "]", "[TOOL_CALLS", "\xFF[TOOL_CALLS][" + kAdd + "]"},
      {"[TOOL_CALLS]", "[[TOOL_CALLS]x"});
  const std::string add = R"({"name": "add", "parameters": {"a": 1}})";
  const Grammar llama = tool_grammar(syntax_named("Llama"), use, nullptr, kNoSpecials);
  expect_texts(llama,
               {"", "hi {", " ", add, "\n " + add, "<|python_tag|>" + add, "\xFF<|python_tag|> " + add, "<|python",
                "<|python_tag|>", "<|python_tag|>print({})", "<|py{", R"({"name": "now", "parameters": {"z": 1}})"},
               {"{", R"({"a": 1})", " {}", "<|python_tag|> {}", R"({"name": "add", "parameters": {"a": "b"}})"});
  use.parallel = false;
  expect_texts(tool_grammar(syntax_named("Hermes"), use, nullptr, kNoSpecials), {"a", "a " + hermes(kAdd)},
               {hermes(kAdd) + "a", hermes(kAdd) + "\n" + hermes(kAdd)});
}

TEST(ToolGrammar, IsCallsOrATextOfASchema) {
  const Ordered schema = {{"type", "array"}, {"items", {{"type", "boolean"}}}};
  const ToolUse use = two_tools(ToolChoice::Auto);
  const std::string any = hermes(R"({"name": "add", "arguments": {"x": 1}})");  // the tool is not strict
  expect_texts(tool_grammar(syntax_named("Hermes"), use, &schema, kNoSpecials),
               {"[true]", any, any + "\n" + hermes(kNow)}, {"", "a", "[true]" + any, "[1]"});
}

TEST(ToolGrammar, NamesTheSchemaThatIsAtFault) {
  const auto refusal = [&](const ToolUse& use, const Ordered* schema = nullptr) -> std::string {
    try {
      tool_grammar(syntax_named("Hermes"), use, schema, kNoSpecials);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      return error.param + " | " + error.what();
    }
    return "";
  };
  ToolUse use = two_tools(ToolChoice::Required);
  for (const char* schema :
       {R"({"type": "array"})", R"({"anyOf": [{"type": "object"}, {"type": "string"}]})", R"({"enum": ["x"]})",
        R"({"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s"})", R"({"properties": {"a": {"not": {}}}})",
        R"({"$ref": "#"})", R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
        R"({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}})"}) {
    use.tools[1].parameters = Ordered::parse(schema);
    EXPECT_THAT(refusal(use), ::testing::StartsWith("tools[1].function.parameters | 'tools[1].function.parameters': "))
        << schema;
    ToolUse lenient = use;
    lenient.choice = ToolChoice::Auto;
    lenient.tools[0].strict = true;
    EXPECT_EQ(refusal(lenient), "") << schema;  // it is not kept to
  }
  use = two_tools(ToolChoice::Auto);
  const Ordered wrong = {{"type", "file"}};
  EXPECT_THAT(refusal(use, &wrong), ::testing::StartsWith("response_format | "));
  use = two_tools(ToolChoice::Required);
  Ordered wide = {{"type", "object"}, {"properties", Ordered::object()}};
  for (int i = 0; i < 100; ++i) wide["properties"]["p" + std::to_string(i)] = {{"type", "string"}, {"maxLength", 200}};
  use.tools.assign(4, {.name = "f", .parameters = wide});
  EXPECT_THAT(refusal(use), ::testing::StartsWith("tools[2].function.parameters | "));
}

}  // namespace
}  // namespace megatron::serve
