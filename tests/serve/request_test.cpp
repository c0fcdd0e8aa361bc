#include "megatron/serve/api/request.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/serve/api/api_error.h"

namespace megatron::serve {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The field that a completion's refusal names, and its message.
std::string refusal(const std::string& body, bool chat = false) {
  try {
    chat ? parse_chat(body) : parse_completion(body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400) << body;
    return error.param + ": " + error.what();
  }
  return "accepted";
}

TEST(CompletionRequest, HasTheDefaultsOfOpenAi) {
  const Request request = parse_completion(R"({"model": "m", "prompt": "a"})");
  EXPECT_EQ(request.model, "m");
  EXPECT_THAT(request.prompts, ElementsAre(Prompt("a")));
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_FALSE(request.stream || request.echo || request.logprobs || request.sampling.seed || request.chat);
}

TEST(CompletionRequest, TakesEveryFormOfPrompt) {
  const auto prompts = [](const std::string& prompt) {
    return parse_completion(R"({"prompt": )" + prompt + "}").prompts;
  };
  using Ids = std::vector<std::int64_t>;
  EXPECT_THAT(prompts(R"("")"), ElementsAre(Prompt("")));
  EXPECT_THAT(prompts(R"(["a", "b"])"), ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_THAT(prompts("[1, 2]"), ElementsAre(Prompt(Ids{1, 2})));
  EXPECT_THAT(prompts("[[1], [2, 3]]"), ElementsAre(Prompt(Ids{1}), Prompt(Ids{2, 3})));
  for (const char* wrong : {"[]", "5", "{}", "[true]", "[1, \"a\"]", "[-1]", "[1.5]", "[99999999999]", "[[1], 2]"})
    EXPECT_THAT(refusal(R"({"prompt": )" + std::string(wrong) + "}"), HasSubstr("prompt: ")) << wrong;
}

TEST(CompletionRequest, ReadsWhatItIsGiven) {
  const Request request = parse_completion(R"({"prompt": "a", "max_tokens": 0, "n": 3, "stop": ["x", "y"], "seed": -1,
    "logit_bias": {"5": -100, "7": 2.5}, "logprobs": 0, "echo": true, "stream": true, "temperature": 0, "top_p": 0.5,
    "stream_options": {"include_usage": true}, "presence_penalty": 0.5, "frequency_penalty": -2, "user": "u",
    "suffix": null, "best_of": 3, "response_format": {"type": "json_object"}})");
  EXPECT_EQ(request.max_tokens, 0);
  EXPECT_EQ(request.n, 3);
  EXPECT_THAT(request.stop, ElementsAre("x", "y"));
  EXPECT_EQ(request.sampling.seed, ~std::uint64_t{0});
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(std::pair(5, -100.0), std::pair(7, 2.5)));
  EXPECT_EQ(request.logprobs, 0);
  EXPECT_TRUE(request.echo && request.stream && request.include_usage);
  EXPECT_EQ(request.sampling.frequency_penalty, -2);
  EXPECT_EQ(request.schema->dump(), R"({"type":"object"})");
}

TEST(CompletionRequest, TakesWhatOpenAisAndVllmsClientsSayOfDefaults) {
  EXPECT_EQ(parse_completion(R"({"prompt": "a", "top_k": -1})").sampling.top_k, 0);
  EXPECT_EQ(parse_completion(R"({"prompt": "a", "top_k": 7})").sampling.top_k, 7);
  for (const char* tier : {"\"auto\"", "\"default\"", "null"}) {
    EXPECT_EQ(refusal(std::string(R"({"prompt": "a", "service_tier": )") + tier + "}"), "accepted") << tier;
  }
  EXPECT_TRUE(parse_completion(R"({"prompt": "a"})").add_special_tokens);
  EXPECT_FALSE(parse_completion(R"({"prompt": "a", "add_special_tokens": false})").add_special_tokens);
  EXPECT_FALSE(parse_chat(R"({"messages": [{"role": "user", "content": "a"}]})").add_special_tokens);
}

TEST(CompletionRequest, KeepsTheOrderOfASchema) {
  const auto asked = [](const std::string& schema) {
    return R"({"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": )" + schema + "}}}";
  };
  const std::string schema = R"({"properties":{"z":{},"a":{},"m":{}}})";
  EXPECT_EQ(parse_completion(asked(schema)).schema->dump(), schema);
  std::string many = "{";
  for (int i = 0; i < 1001; ++i) many += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\": 1";
  EXPECT_THAT(refusal(asked(many + "}")), HasSubstr("1000 keys"));
  EXPECT_THAT(refusal(asked("5")), HasSubstr("must be a JSON Schema"));
}

TEST(CompletionRequest, RefusesWhatItDoesNotHaveOrThatIsOutOfRange) {
  const auto with = [](const std::string& field) { return refusal(R"({"prompt": "a", )" + field + "}"); };
  EXPECT_EQ(with(R"("n": 1)"), "accepted");
  for (const auto& [field, name] : std::vector<std::pair<std::string, std::string>>{
           {R"("temperature": 2.1)", "temperature"},
           {R"("temperature": "hot")", "temperature"},
           {R"("top_p": 0)", "top_p"},
           {R"("min_p": 1.1)", "min_p"},
           {R"("repetition_penalty": 0)", "repetition_penalty"},
           {R"("top_p": 1e400)", ""},
           {R"("max_tokens": -1)", "max_tokens"},
           {R"("max_tokens": 1.5)", "max_tokens"},
           {R"("max_tokens": 18446744073709551615)", "max_tokens"},
           {R"("n": 0)", "n"},
           {R"("n": 129)", "n"},
           {R"("stop": "")", "stop"},
           {R"("stop": [1])", "stop"},
           {R"("logit_bias": {"a": 1})", "logit_bias"},
           {R"("logit_bias": {"1": 101})", "logit_bias"},
           {R"("logit_bias": [1])", "logit_bias"},
           {R"("logprobs": true)", "logprobs"},
           {R"("stream": 1)", "stream"},
           {R"("stream_options": {"include_usage": true})", "stream_options"},
           {R"("seed": 1.5)", "seed"},
           {R"("response_format": {"type": "yaml"})", "response_format.type"},
           {R"("suffix": "x")", "suffix"},
           {R"("best_of": 2)", "best_of"},
           {R"("top_k": -2)", "top_k"},
           {R"("service_tier": "priority")", "service_tier"},
           {R"("unknown": 1)", "unknown"},
           {R"("n": 1, "n": 2)", ""}})
    EXPECT_THAT(with(field), ::testing::StartsWith(name + ": ")) << field;
  EXPECT_THAT(refusal("{}"), HasSubstr("'prompt' is missing"));
  EXPECT_THAT(refusal("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refusal("{\"prompt\": \"a\""), HasSubstr("JSON"));
  EXPECT_THAT(refusal("{\"prompt\": \"\xff\"}"), HasSubstr("JSON"));
  EXPECT_THAT(refusal(R"({"prompt": )" + std::string(100, '[') + std::string(100, ']') + "}"), HasSubstr("nested"));
}

TEST(ChatRequest, ReadsMessagesAndTheirParts) {
  const Request request = parse_chat(R"({"messages": [{"role": "developer", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": "c", "refusal": null, "tool_calls": null}], "logprobs": true, "top_logprobs": 2,
    "max_completion_tokens": 9})");
  ASSERT_EQ(request.messages.size(), 3);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(request.messages[1].content, "ab");
  EXPECT_EQ(request.logprobs, 2);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_TRUE(request.chat);
}

TEST(ChatRequest, RefusesWhatNoTemplateIsAskedFor) {
  const auto with = [](const std::string& rest) {
    return refusal(R"({"messages": [{"role": "user", "content": "a"}], )" + rest + "}", true);
  };
  EXPECT_THAT(with(R"("top_logprobs": 1)"), HasSubstr("needs logprobs"));
  EXPECT_THAT(with(R"("functions": [{"name": "f"}])"), HasSubstr("not supported by this server: use 'tools'"));
  EXPECT_THAT(with(R"("function_call": "auto")"), HasSubstr("not supported by this server: use 'tools'"));
  EXPECT_EQ(with(R"("tools": [], "tool_choice": "none", "store": false)"), "accepted");
  for (const char* messages : {"[]", "{}", R"([{"role": "robot", "content": "a"}])", R"([{"role": "user"}])",
                               R"([{"role": "user", "content": 5}])", R"(["a"])",
                               R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
                               R"([{"role": "user", "content": "a", "tool_calls": [1]}])"})
    EXPECT_THAT(refusal(R"({"messages": )" + std::string(messages) + "}", true), HasSubstr("messages")) << messages;
}

/// A chat's request with other fields.
std::string chat_with(const std::string& rest) {
  return R"({"messages": [{"role": "user", "content": "a"}], )" + rest + "}";
}

TEST(ChatRequest, ReadsTools) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "get-it_1", "strict": true,
    "description": "d", "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}},
    {"function": {"name": "now"}, "type": "function"}])";
  const ToolUse use = parse_chat(chat_with(tools)).tools;
  EXPECT_EQ(use.choice, ToolChoice::Auto);
  EXPECT_TRUE(use.parallel);
  ASSERT_EQ(use.tools.size(), 2);
  EXPECT_EQ(use.tools[0].name, "get-it_1");
  EXPECT_TRUE(use.tools[0].strict);
  EXPECT_EQ(use.tools[0].parameters.dump(), R"({"type":"object","properties":{"z":{},"a":{}}})");
  EXPECT_FALSE(use.tools[1].strict);
  EXPECT_TRUE(use.tools[1].parameters.is_null());
  // As it is written, but for what is the server's.
  EXPECT_EQ(use.definitions.dump(),
            R"([{"type":"function","function":{"name":"get-it_1","description":"d","parameters":)"
            R"({"type":"object","properties":{"z":{},"a":{}}}}},{"function":{"name":"now"},"type":"function"}])");
  const auto choice = [&](const std::string& said) { return parse_chat(chat_with(tools + ", " + said)).tools; };
  EXPECT_EQ(choice(R"("tool_choice": "required")").choice, ToolChoice::Required);
  EXPECT_EQ(choice(R"("tool_choice": "auto", "parallel_tool_calls": false)").parallel, false);
  const ToolUse one = choice(R"("tool_choice": {"type": "function", "function": {"name": "now"}})");
  EXPECT_EQ(one.choice, ToolChoice::Function);
  EXPECT_EQ(one.function, 1);
  const ToolUse none = choice(R"("tool_choice": "none")");
  EXPECT_EQ(none.choice, ToolChoice::None);
  EXPECT_TRUE(none.tools.empty() && none.definitions.is_null());
  EXPECT_EQ(parse_chat(chat_with(R"("tools": [], "tool_choice": "auto")")).tools.choice, ToolChoice::None);
}

TEST(ChatRequest, NamesThePathOfWhatIsWrongWithTools) {
  const auto function = [](const std::string& of) {
    return R"("tools": [{"type": "function", "function": )" + of + "}]";
  };
  std::string many = R"("tools": [)", keys = R"({"name": "f", "parameters": {"properties": {"k": {})";
  for (int i = 0; i < 129; ++i)
    many += (i > 0 ? "," : "") + (R"({"type": "function", "function": {"name": "f)" + std::to_string(i)) + "\"}}";
  for (int i = 0; i < 1000; ++i) keys += ", \"k" + std::to_string(i) + "\": {}";
  const std::string good = function(R"({"name": "f"})") + ", ";
  for (const auto& [rest, error] : std::vector<std::pair<std::string, std::string>>{
           {R"("tools": {})", "tools: "},
           {R"("tools": [5])", "tools[0]: "},
           {R"("tools": [{"function": {"name": "f"}}])", "tools[0].type: 'tools[0].type' must be function, not"},
           {R"("tools": [{"type": "retrieval"}])", "tools[0].type: "},
           {R"("tools": [{"type": "function"}])", "tools[0].function: 'tools[0].function' is missing"},
           {R"("tools": [{"type": "function", "function": {"name": "f"}, "x": 1}])", "tools[0].x: "},
           {function("{}"), "tools[0].function.name: "},
           {function(R"({"name": "get weather"})"),
            "tools[0].function.name: 'tools[0].function.name' must be 1 to 64 of the characters"},
           {function(R"({"name": "")" + std::string("}")), "tools[0].function.name: "},
           {function(R"({"name": ")" + std::string(65, 'a') + "\"}"), "tools[0].function.name: "},
           {function(R"({"name": 5})"), "tools[0].function.name: "},
           {function(R"({"name": "f", "parameters": []})"), "tools[0].function.parameters: "},
           {function(R"({"name": "f", "description": 1})"), "tools[0].function.description: "},
           {function(R"({"name": "f", "strict": "yes"})"), "tools[0].function.strict: "},
           {function(R"({"name": "f", "code": "x"})"), "tools[0].function.code: "},
           {R"("tools": [{"type": "function", "function": {"name": "f"}},
             {"type": "function", "function": {"name": "f"}}])",
            "tools[1].function.name: "},
           {many + "]", "tools: "},
           {function(keys + "}}}"), "tools: "},
           {good + R"("tool_choice": "any")", "tool_choice: "},
           {good + R"("tool_choice": 5)", "tool_choice: "},
           {good + R"("tool_choice": {"type": "allowed_tools"})", "tool_choice.type: "},
           {good + R"("tool_choice": {"type": "function", "function": {"name": "g"}})", "tool_choice.function.name: "},
           {good + R"("parallel_tool_calls": "no")", "parallel_tool_calls: "},
           {good + R"("tool_choice": "required", "response_format": {"type": "json_object"})", "response_format: "},
           {R"("tool_choice": "required")", "tool_choice: "},
           {R"("tool_choice": {"type": "function", "function": {"name": "f"}})", "tool_choice.function.name: "}})
    EXPECT_THAT(refusal(chat_with(rest), true), ::testing::StartsWith(error)) << rest;
}

TEST(ChatRequest, ReadsCallsAndTheirAnswers) {
  const Request request = parse_chat(R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "index": 0,
      "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
      {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "x"}], "name": "g"},
    {"role": "tool", "tool_call_id": "c1", "content": "y"}]})");
  ASSERT_EQ(request.messages.size(), 4);
  const text::ChatMessage& caller = request.messages[1];
  EXPECT_EQ(caller.content, "");
  ASSERT_EQ(caller.tool_calls.size(), 2);
  EXPECT_EQ(caller.tool_calls[0].id, "c1");
  EXPECT_EQ(caller.tool_calls[0].name, "f");
  EXPECT_EQ(caller.tool_calls[0].arguments, R"({"b": 1, "a": 2})");
  EXPECT_EQ(caller.tool_calls[1].arguments, "{}");
  EXPECT_EQ(request.messages[2].tool_call_id, "c2");
  EXPECT_EQ(request.messages[2].content, "x");
  EXPECT_EQ(request.messages[2].name, "g");
}

TEST(ChatRequest, NamesThePathOfWhatIsWrongWithCalls) {
  const auto messages = [](const std::string& call, const std::string& more = "") {
    return R"({"messages": [{"role": "assistant", "tool_calls": )" + call + "}" + more + "]}";
  };
  const auto arguments = [&](const std::string& text) {
    return messages(R"([{"id": "c", "type": "function", "function": {"name": "f", "arguments": )" + text + "}}]");
  };
  const std::string good = R"([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}])";
  const std::string path = "messages[0].tool_calls[0].", of_arguments = path + "function.arguments: ";
  EXPECT_EQ(refusal(messages(good), true), "accepted");
  EXPECT_EQ(refusal(messages("[]", R"(, {"role": "user", "content": "a"})"), true),
            "messages[0].content: 'messages[0].content' is missing");
  for (const auto& [body, error] : std::vector<std::pair<std::string, std::string>>{
           {messages("{}"), "messages[0].tool_calls: "},
           {messages("[1]"), "messages[0].tool_calls[0]: "},
           {messages(R"([{"id": "c", "type": "code", "function": {}}])"), path + "type: "},
           {messages(R"([{"type": "function", "function": {"name": "f", "arguments": "{}"}}])"), path + "id: "},
           {messages(R"([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "x": 1}])"),
            path + "x: "},
           {messages(R"([{"id": "c", "type": "function", "function": {"name": "f g", "arguments": "{}"}}])"),
            path + "function.name: "},
           {messages(R"([{"id": "c", "type": "function", "function": {"name": "f"}}])"), of_arguments},
           {arguments("{}"), of_arguments},
           {arguments(R"("[]")"), of_arguments},
           {arguments(R"("{\"a\": }")"), of_arguments},
           {arguments("\"{\\\"a\\\": " + std::string(60, '[') + std::string(60, ']') + "}\""), of_arguments},
           {messages(good, R"(, {"role": "tool", "content": "x"})"), "messages[1].tool_call_id: "},
           {messages(good, R"(, {"role": "tool", "tool_call_id": "d", "content": "x"})"), "messages[1].tool_call_id: "},
           {messages(good, R"(, {"role": "tool", "tool_call_id": "c"})"), "messages[1].content: "},
           {messages(good, R"(, {"role": "function", "name": "f", "content": "x"})"), "messages[1].role: "},
           {messages(good, R"(, {"role": "user", "content": "x", "tool_calls": [1]})"), "messages[1].tool_calls: "},
           {R"({"messages": [{"role": "assistant", "content": "a", "function_call": {}}]})",
            "messages[0].function_call: "}})
    EXPECT_THAT(refusal(body, true), ::testing::StartsWith(error)) << body;
}

TEST(ApiError, IsInTheFormOfOpenAi) {
  const auto error = json::parse(error_json(ApiError(429, "too \"many\"", "", "rate_limit_exceeded")))["error"];
  EXPECT_EQ(error, json({{"message", "too \"many\""},
                         {"type", "rate_limit_error"},
                         {"param", nullptr},
                         {"code", "rate_limit_exceeded"}}));
  EXPECT_EQ(json::parse(error_json(ApiError(500, "\xff")))["error"]["type"], "server_error");
}

}  // namespace
}  // namespace megatron::serve
