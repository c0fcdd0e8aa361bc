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
  EXPECT_THAT(with(R"("tools": [{"type": "function"}])"), HasSubstr("not supported"));
  EXPECT_EQ(with(R"("tools": [], "tool_choice": "none", "store": false)"), "accepted");
  for (const char* messages : {"[]", "{}", R"([{"role": "robot", "content": "a"}])", R"([{"role": "user"}])",
                               R"([{"role": "user", "content": 5}])", R"(["a"])",
                               R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
                               R"([{"role": "user", "content": "a", "tool_calls": [1]}])"})
    EXPECT_THAT(refusal(R"({"messages": )" + std::string(messages) + "}", true), HasSubstr("messages")) << messages;
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
