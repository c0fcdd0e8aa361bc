#include "megatron/serve/api/responses.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "megatron/text/vocabulary.h"

namespace megatron::serve {
namespace {

using nlohmann::json;

text::Tokenizer letters() {
  text::Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  vocabulary.tokens.emplace_back("ä");
  vocabulary.merges = {{0xC3, 0xA4}};
  return text::Tokenizer(vocabulary);
}

const std::vector<ScoredToken> kTokens = {{.id = 'a', .logprob = {}, .likeliest = {}},
                                          {.id = 256, .logprob = -0.5, .likeliest = {{256, -0.5}, {0xC3, -2}}},
                                          {.id = 'b', .logprob = -1, .likeliest = {}}};

TEST(Responses, ScoreTokensOfACompletion) {
  EXPECT_EQ(json(log_probabilities(letters(), false, kTokens, {3, 4, 5})),
            json({{"tokens", {"a", "ä", "b"}},
                  {"token_logprobs", {nullptr, -0.5, -1.0}},
                  {"top_logprobs", {nullptr, {{"ä", -0.5}, {"bytes:\\xc3", -2.0}}, json::object()}},
                  {"text_offset", {3, 4, 5}}}));
}

TEST(Responses, ScoreTokensOfAChat) {
  const json chat = log_probabilities(letters(), true, kTokens);
  EXPECT_EQ(chat["content"][1]["token"], "ä");
  EXPECT_EQ(chat["content"][1]["bytes"], json({0xC3, 0xA4}));
  EXPECT_EQ(chat["content"][1]["top_logprobs"][1]["logprob"], -2);
  EXPECT_EQ(chat["content"][2]["top_logprobs"], json::array());
}

TEST(Responses, HaveTheFormsOfOpenAi) {
  const ResponseHead text{.id = "cmpl-1", .created = 7, .model = "m"};
  const ResponseHead chat{.id = "chatcmpl-1", .created = 7, .model = "m", .chat = true};
  ChoicePiece piece{.index = 1, .text = "hi", .first = true, .finish = Finish::Length, .logprobs = nullptr};
  EXPECT_EQ(json::parse(response_json(text, {piece}, {.prompt = 3, .completion = 4})),
            json::parse(R"({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", "choices":
              [{"index": 1, "text": "hi", "logprobs": null, "finish_reason": "length"}], "usage": {"prompt_tokens": 3,
              "completion_tokens": 4, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}}})"));
  EXPECT_EQ(json::parse(response_json(chat, {piece}, {}))["choices"][0]["message"],
            json({{"role", "assistant"}, {"content", "hi"}, {"refusal", nullptr}}));
  EXPECT_EQ(
      json::parse(chunk_json(chat, piece)),
      json::parse(R"({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices":
              [{"index": 1, "delta": {"role": "assistant", "content": "hi"}, "logprobs": null,
              "finish_reason": "length"}]})"));
  piece = {.index = 0, .text = "", .first = false, .finish = Finish::Stop, .logprobs = nullptr};
  EXPECT_EQ(json::parse(chunk_json(chat, piece))["choices"][0]["delta"], json::object());
  EXPECT_EQ(json::parse(usage_chunk_json(text, {.prompt = 1}))["choices"], json::array());
  EXPECT_EQ(json::parse(models_json({{.name = "m"}}, {.created = 7, .context = 512}))["data"][0]["id"], "m");
}

TEST(Responses, HaveCallsInTheFormOfOpenAi) {
  const ResponseHead head{.id = "chatcmpl-1", .created = 7, .model = "m", .chat = true, .tools = true};
  ChoicePiece piece{.finish = Finish::ToolCalls,
                    .logprobs = nullptr,
                    .calls = {{.index = 0, .id = "call_1", .name = "f", .arguments = "{\"a\": 1}"}}};
  const json choice = json::parse(response_json(head, {piece}, {}))["choices"][0];
  EXPECT_EQ(choice["message"], json::parse(R"({"role": "assistant", "content": null, "refusal": null, "tool_calls":
    [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]})"));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  piece.text = "Hm.";
  EXPECT_EQ(json::parse(response_json(head, {piece}, {}))["choices"][0]["message"]["content"], "Hm.");
  const auto delta = [&](const ChoicePiece& one) { return json::parse(chunk_json(head, one))["choices"][0]["delta"]; };
  EXPECT_EQ(delta({.first = true}), json({{"role", "assistant"}, {"content", nullptr}}));
  EXPECT_EQ(delta({.calls = {{.index = 1, .id = "call_2", .name = "g"}}}), json::parse(R"({"tool_calls": [{"index": 1,
    "id": "call_2", "type": "function", "function": {"name": "g", "arguments": ""}}]})"));
  EXPECT_EQ(delta({.calls = {{.index = 1, .arguments = "{"}}}),
            json::parse(R"({"tool_calls": [{"index": 1, "function": {"arguments": "{"}}]})"));
}

TEST(Responses, AreJsonWhateverTheTextIs) {
  const ChoicePiece piece{.index = 0, .text = "\xff\"\n", .first = false, .finish = {}, .logprobs = nullptr};
  EXPECT_EQ(json::parse(chunk_json({}, piece))["choices"][0]["text"], "\xEF\xBF\xBD\"\n");
}

}  // namespace
}  // namespace megatron::serve
