#include <gmock/gmock.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/serve/api/api_error.h"
#include "megatron/serve/service.h"
#include "megatron/text/files/base64.h"
#include "megatron/text/vocabulary.h"

namespace megatron::serve {
namespace {

using nlohmann::json;

struct Kept : Reply {
  std::optional<HttpResponse> response;
  bool away = false;

  void send(HttpResponse sent) override { response = std::move(sent); }
  void begin(HttpResponse) override {}
  void write(std::string) override {}
  void end() override {}
  bool gone() const override { return away; }
};

/// A service of an encoder that frames texts by tokens 1 and 2; each byte is a token.
struct EncoderBench {
  explicit EncoderBench(
      ServiceOptions options = {.model = "m", .context = 6, .vocab = 256, .embeddings = true, .limits = {.choices = 4}})
      : service(std::move(options), tokenizer, std::nullopt, queue, metrics) {}
  static text::Tokenizer framing() {
    text::Vocabulary vocabulary;
    for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
    using Kind = text::Template::Kind;
    vocabulary.frame.single = {{Kind::Token, 1, 0}, {Kind::First, 0, 0}, {Kind::Token, 2, 0}};
    return text::Tokenizer(vocabulary);
  }
  std::shared_ptr<Kept> ask(const json& body, const std::string& path = "/v1/embeddings") {
    const auto reply = std::make_shared<Kept>();
    service.handle(
        {.method = "POST", .path = path, .headers = {{"content-type", "application/json"}}, .body = body.dump()},
        reply);
    return reply;
  }
  std::vector<TextTask> tasks() {
    std::vector<TextTask> all;
    while (auto task = queue.take_if([](const TextTask&) { return true; })) all.push_back(std::move(*task));
    return all;
  }

  text::Tokenizer tokenizer = framing();
  TaskQueue queue{QueueLimits{.texts = 8, .texts_of_client = 4}};
  Metrics metrics;
  Service service;
};

TEST(Embeddings, AreOfTheTextBehindThePromptInLowerCase) {
  EncoderBench bench(
      {.model = "m", .context = 12, .vocab = 256, .embeddings = true, .prompt = "Q: ", .lower_case = true});
  bench.ask({{"input", "aBc"}, {"model", "m"}});
  bench.ask({{"input", {65, 66}}, {"model", "m"}});  // ids are taken as they are
  const auto tasks = bench.tasks();
  ASSERT_EQ(tasks.size(), 2);
  EXPECT_EQ(tasks[0].prompt, (std::vector<std::int64_t>{1, 'q', ':', ' ', 'a', 'b', 'c', 2}));
  EXPECT_EQ(tasks[1].prompt, (std::vector<std::int64_t>{65, 66}));
}

TEST(Embeddings, OfSeveralTextsAreSentInTheirOrderOnceAllAreThere) {
  EncoderBench bench;
  const auto reply = bench.ask({{"input", {"ab", "c"}}, {"model", "m"}});
  const auto tasks = bench.tasks();
  ASSERT_EQ(tasks.size(), 2);
  EXPECT_EQ(tasks[0].prompt, (std::vector<std::int64_t>{1, 'a', 'b', 2}));
  EXPECT_EQ(tasks[1].prompt, (std::vector<std::int64_t>{1, 'c', 2}));
  tasks[1].listener->on_embedding({3, 4});
  EXPECT_FALSE(reply->response);
  tasks[0].listener->on_embedding({1, 0.1F});
  ASSERT_TRUE(reply->response);
  EXPECT_EQ(reply->response->status, 200);
  const json answer = json::parse(reply->response->body);
  EXPECT_EQ(answer["object"], "list");
  EXPECT_EQ(answer["data"][0]["index"], 0);
  EXPECT_EQ(answer["data"][0]["embedding"], json({1.0F, 0.1F}));
  EXPECT_EQ(answer["data"][1]["embedding"], json({3.0F, 4.0F}));
  EXPECT_EQ(answer["usage"], json({{"prompt_tokens", 7}, {"total_tokens", 7}}));
}

TEST(Embeddings, AsBase64AreTheBytesOfFloat32) {
  EncoderBench bench;
  const auto reply = bench.ask({{"input", {5, 6}}, {"encoding_format", "base64"}});
  const auto tasks = bench.tasks();
  ASSERT_EQ(tasks.size(), 1);
  EXPECT_EQ(tasks[0].prompt, (std::vector<std::int64_t>{5, 6}));  // ids are taken as they are
  const std::vector<float> vector = {-1.5F, 3e-7F, 0};
  tasks[0].listener->on_embedding(vector);
  std::string bytes;
  const json answer = json::parse(reply->response->body);
  ASSERT_TRUE(text::from_base64(answer["data"][0]["embedding"].get<std::string>(), bytes));
  std::vector<float> read(vector.size());
  ASSERT_EQ(bytes.size(), read.size() * sizeof(float));
  std::memcpy(read.data(), bytes.data(), bytes.size());
  EXPECT_EQ(read, vector);
}

TEST(Embeddings, OneErrorEndsTheRequest) {
  EncoderBench bench;
  const auto reply = bench.ask({{"input", {"a", "b"}}});
  const auto tasks = bench.tasks();
  EXPECT_FALSE(tasks[0].listener->gone());
  tasks[0].listener->on_error(504, "the request took too long");
  EXPECT_EQ(reply->response->status, 504);
  EXPECT_TRUE(tasks[1].listener->gone());
  tasks[1].listener->on_embedding({1});
  EXPECT_EQ(reply->response->status, 504);
}

TEST(Embeddings, WhatCannotBeIsRefused) {
  EncoderBench bench;
  const auto status = [&](const json& body, const std::string& path = "/v1/embeddings") {
    const auto reply = bench.ask(body, path);
    return reply->response ? reply->response->status : 0;
  };
  EXPECT_EQ(status({{"input", "abcde"}}), 400);  // 7 tokens
  EXPECT_EQ(status({{"input", "abcd"}}), 0);
  EXPECT_EQ(status({{"input", json::array()}}), 400);
  EXPECT_EQ(status({{"input", {256}}}), 400);
  EXPECT_EQ(status({{"input", {"a", 1}}}), 400);
  EXPECT_EQ(status({{"input", {"1", "2", "3", "4", "5"}}}), 400);
  EXPECT_EQ(status({{"input", "a"}, {"dimensions", 2}}), 400);
  EXPECT_EQ(status({{"input", "a"}, {"encoding_format", "int8"}}), 400);
  EXPECT_EQ(status({{"input", "a"}, {"temperature", 0}}), 400);
  EXPECT_EQ(status({{"input", "a"}, {"model", "other"}}), 404);
  EXPECT_EQ(status({{"prompt", "a"}}, "/v1/completions"), 400);
  EXPECT_EQ(status({{"input", {"1", "2", "3", "4"}}}), 429);  // one waits
  EXPECT_EQ(bench.queue.size(), 1);
}

}  // namespace
}  // namespace megatron::serve
