#include <gmock/gmock.h>

#include <algorithm>
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
  explicit EncoderBench(ServiceOptions options = {.model = "m",
                                                  .context = 6,
                                                  .vocab = 256,
                                                  .embeddings = true,
                                                  .limits = {.choices = 4, .inputs = 6}})
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

TEST(Embeddings, OfManyTextsAreMadeInTurnsAndSentInTheirOrder) {
  EncoderBench bench;
  const auto reply = bench.ask({{"input", {"a", "b", "c", "d", "e", "f"}}});
  std::vector<std::int64_t> order;
  std::size_t most = 0;
  for (bool more = true; more;) {
    most = std::max(most, bench.queue.size());
    auto task = bench.queue.take_if([](const TextTask&) { return true; });
    more = task.has_value();
    if (!task) break;
    order.push_back(task->prompt.at(1));
    task->listener->on_embedding({static_cast<float>(task->prompt.at(1))});
  }
  EXPECT_EQ(most, 4);
  EXPECT_EQ(order, (std::vector<std::int64_t>{'a', 'b', 'c', 'd', 'e', 'f'}));
  ASSERT_TRUE(reply->response);
  const json data = json::parse(reply->response->body)["data"];
  ASSERT_EQ(data.size(), 6);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(data[static_cast<std::size_t>(i)]["embedding"], json({'a' + i}));
}

TEST(Embeddings, OfManyTextsWaitForTheirTurnWhereOthersHaveFilledTheQueue) {
  EncoderBench bench;
  const auto reply = bench.ask({{"input", {"a", "b", "c", "d", "e", "f"}}});
  const auto first = bench.tasks();
  ASSERT_EQ(first.size(), 4);
  std::vector<TextTask> others(8);
  for (std::size_t i = 0; i < others.size(); ++i) others[i].client = i < 4 ? "other" : "third";
  bench.queue.submit({others.begin(), others.begin() + 4});
  bench.queue.submit({others.begin() + 4, others.end()});
  for (int i = 0; i < 3; ++i) first[static_cast<std::size_t>(i)].listener->on_embedding({1});
  EXPECT_EQ(bench.queue.size(), 8);
  EXPECT_FALSE(reply->response);
  bench.tasks();
  first[3].listener->on_embedding({1});
  for (const TextTask& task : bench.tasks()) task.listener->on_embedding({1});
  ASSERT_TRUE(reply->response);
  EXPECT_EQ(reply->response->status, 200);
  // Where none of its texts is under way any more, nobody would ask for the rest.
  const auto refused = bench.ask({{"input", {"a", "b", "c", "d", "e"}}});
  const auto again = bench.tasks();
  bench.queue.submit({others.begin(), others.begin() + 4});
  bench.queue.submit({others.begin() + 4, others.end()});
  for (const TextTask& task : again) task.listener->on_embedding({1});
  ASSERT_TRUE(refused->response);
  EXPECT_EQ(refused->response->status, 429);
}

TEST(Embeddings, AreFramedUnlessAskedOtherwise) {
  EncoderBench bench;
  bench.ask({{"input", "ab"}, {"add_special_tokens", false}});
  EXPECT_EQ(bench.tasks().at(0).prompt, (std::vector<std::int64_t>{'a', 'b'}));
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
  EXPECT_EQ(status({{"input", {"1", "2", "3", "4", "5", "6", "7"}}}), 400);
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
