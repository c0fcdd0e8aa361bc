#include "megatron/serve/service.h"

#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/text/vocabulary.h"

namespace megatron::serve {
namespace {

struct Heard : Reply {
  std::optional<HttpResponse> response;
  std::string streamed;
  int begins = 0, ends = 0;
  bool away = false;

  void send(HttpResponse sent) override { response = std::move(sent); }
  void begin(HttpResponse) override { ++begins; }
  void write(std::string data) override { streamed += data; }
  void end() override { ++ends; }
  bool gone() const override { return away; }
};

HttpRequest posted(const nlohmann::json& body, const std::string& path = "/v1/completions") {
  return {.method = "POST", .path = path, .headers = {{"content-type", "application/json"}}, .body = body.dump()};
}

struct Bench {
  explicit Bench(const QueueLimits& limits) : queue(limits) {}

  std::shared_ptr<Heard> ask(const nlohmann::json& body) {
    const auto reply = std::make_shared<Heard>();
    service.handle(posted(body), reply);
    return reply;
  }
  std::vector<TextTask> tasks() {
    std::vector<TextTask> all;
    while (auto task = queue.take_if([](const TextTask&) { return true; })) all.push_back(std::move(*task));
    return all;
  }
  static text::Tokenizer bytes() {
    text::Vocabulary vocabulary;
    for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
    return text::Tokenizer(vocabulary);
  }
  /// Its texts begin with token 1 and end with token 2.
  static text::Tokenizer framing() {
    text::Vocabulary vocabulary = bytes().vocabulary();
    using Kind = text::Template::Kind;
    vocabulary.frame.single = {{Kind::Token, 1, 0}, {Kind::First, 0, 0}, {Kind::Token, 2, 0}};
    return text::Tokenizer(vocabulary);
  }

  text::Tokenizer tokenizer = bytes();
  TaskQueue queue;
  Metrics metrics;
  Service service{{.model = "m", .context = 100, .vocab = 256, .ends = {0}}, tokenizer, std::nullopt, queue, metrics};
};

TEST(Service, ShowsThePicturesOfTheRun) {
  Bench bench({.texts = 2, .texts_of_client = 1});
  const auto draw = [] { return std::string("<svg/>"); };
  const auto too_early = []() -> std::string { throw ApiError(404, "no loss yet", "", "not_found"); };
  Service service({.model = "m", .tokens = {"secret"}, .pictures = {{"curves", draw}, {"early", too_early}}},
                  bench.tokenizer, std::nullopt, bench.queue, bench.metrics);
  const auto get = [&](const std::string& path, const std::string& token) {
    const auto reply = std::make_shared<Heard>();
    service.handle({.method = "GET", .path = path, .headers = {{"authorization", "Bearer " + token}}, .body = ""},
                   reply);
    return *reply->response;
  };
  EXPECT_EQ(get("/run", "secret").body, R"({"pictures":["curves","early"]})");
  EXPECT_EQ(get("/run/curves.svg", "secret").body, "<svg/>");
  EXPECT_EQ(get("/run/curves.svg", "secret").type, "image/svg+xml");
  EXPECT_EQ(get("/run/curves.svg", "other").status, 401);
  EXPECT_EQ(get("/run/schedule.svg", "secret").status, 404);
  EXPECT_EQ(get("/run/early.svg", "secret").status, 404);
  EXPECT_THAT(bench.metrics.text(), testing::Not(testing::HasSubstr("status=\"500\"")));
  EXPECT_EQ(get("/run/", "secret").status, 404);
}

TEST(Service, BeginsTextsAsTheTokenizersTemplateDoes) {
  Bench bench({});
  const text::Tokenizer framing = Bench::framing();
  const text::ChatTemplate chat("{{ messages[0]['content'] }}", {}, "test");
  Service service({.model = "m", .context = 100, .vocab = 256, .ends = {0}}, framing, chat, bench.queue, bench.metrics);
  const auto prompt = [&](const nlohmann::json& body, const std::string& path = "/v1/completions") {
    service.handle(
        {.method = "POST", .path = path, .headers = {{"content-type", "application/json"}}, .body = body.dump()},
        std::make_shared<Heard>());
    return bench.tasks().at(0).prompt;
  };
  using Ids = std::vector<std::int64_t>;
  EXPECT_EQ(prompt({{"prompt", "ab"}}), (Ids{1, 'a', 'b'}));
  EXPECT_EQ(prompt({{"prompt", "\001ab"}}), (Ids{1, 'a', 'b'}));
  EXPECT_EQ(prompt({{"prompt", ""}}), Ids{1});
  EXPECT_EQ(prompt({{"prompt", {'a', 'b'}}}), (Ids{'a', 'b'}));  // ids are taken as they are
  EXPECT_EQ(prompt({{"prompt", "ab"}, {"add_special_tokens", false}}), (Ids{'a', 'b'}));
  EXPECT_EQ(prompt({{"prompt", ""}, {"add_special_tokens", false}}), Ids{0});
  nlohmann::json talk{{"messages", {{{"role", "user"}, {"content", "ab"}}}}};
  EXPECT_EQ(prompt(talk, "/v1/chat/completions"), (Ids{'a', 'b'}));
  talk["add_special_tokens"] = true;
  EXPECT_EQ(prompt(talk, "/v1/chat/completions"), (Ids{1, 'a', 'b'}));
}

TEST(Service, FollowsHttpInWhatItTakes) {
  Bench bench({});
  const auto answer = [&](const std::string& method, const std::string& path, const std::string& type) {
    const auto reply = std::make_shared<Heard>();
    bench.service.handle(
        {.method = method, .path = path, .headers = {{"content-type", type}}, .body = R"({"prompt": "a"})"}, reply);
    return reply->response.value_or(HttpResponse{.status = 0});
  };
  for (const char* type : {"application/json", "Application/JSON", "application/json ; charset=utf-8"})
    EXPECT_EQ(answer("POST", "/v1/completions", type).status, 0) << type;  // it waits
  for (const char* type : {"application/jsonp", "text/plain", ""})
    EXPECT_EQ(answer("POST", "/v1/completions", type).status, 415) << type;
  for (const auto& [method, path, allowed] :
       {std::tuple("POST", "/health", "GET, HEAD"), std::tuple("DELETE", "/v1/models/m", "GET, HEAD"),
        std::tuple("GET", "/v1/completions", "POST")}) {
    const HttpResponse refused = answer(method, path, "application/json");
    EXPECT_EQ(refused.status, 405);
    EXPECT_THAT(refused.headers, ::testing::ElementsAre(::testing::Pair("Allow", allowed))) << path;
  }
}

TEST(Service, NamesATimeWhereTooManyWait) {
  Bench bench({.texts = 2, .texts_of_client = 1});
  EXPECT_FALSE(bench.ask({{"prompt", "a"}})->response);
  const auto reply = bench.ask({{"prompt", "a"}});
  ASSERT_TRUE(reply->response);
  EXPECT_EQ(reply->response->status, 429);
  EXPECT_THAT(reply->response->headers, ::testing::ElementsAre(::testing::Pair("Retry-After", "5")));
}

TEST(Service, DrawsTheTextsOfEachRequestFromASeedOfItsOwn) {
  Bench bench({});
  for (int i = 0; i < 3; ++i) bench.ask({{"prompt", "a"}});
  bench.ask({{"prompt", "a"}, {"seed", 7}});
  const auto tasks = bench.tasks();
  ASSERT_EQ(tasks.size(), 4);
  EXPECT_NE(tasks[0].seed, tasks[1].seed);
  EXPECT_NE(tasks[1].seed, tasks[2].seed);
  EXPECT_EQ(tasks[3].seed, 7);
}

TEST(TextResponse, WaitsForNoTextOnceOneHasFailed) {
  for (const bool stream : {false, true}) {
    Bench bench({});
    const auto reply = bench.ask({{"prompt", "a"}, {"n", 3}, {"stream", stream}});
    const auto tasks = bench.tasks();
    ASSERT_EQ(tasks.size(), 3);
    EXPECT_TRUE(tasks[0].listener->on_token({.id = 'b'}));
    EXPECT_FALSE(tasks[1].listener->gone());
    tasks[0].listener->on_error(500, "broken");
    EXPECT_TRUE(tasks[1].listener->gone());
    EXPECT_TRUE(tasks[2].listener->gone());
    tasks[1].listener->on_error(499, "the client has gone");
    EXPECT_EQ(reply->ends, stream ? 1 : 0);
    EXPECT_EQ(reply->response.has_value(), !stream);
    if (!stream) {
      EXPECT_EQ(reply->response->status, 500);
    }
  }
}

TEST(TextResponse, EchoesTheWholePromptAndSaysWhereEachTokenBegins) {
  Bench bench({});
  const text::Tokenizer framing = Bench::framing();
  Service service({.model = "m", .context = 100, .vocab = 256, .ends = {'e'}}, framing, std::nullopt, bench.queue,
                  bench.metrics);
  const auto choice = [&](const nlohmann::json& body) {
    const auto reply = std::make_shared<Heard>();
    service.handle(posted(body), reply);
    const TextTask task = bench.tasks().at(0);
    std::vector<ScoredToken> scored;
    for (const std::int64_t id : task.prompt) scored.push_back({.id = id});
    if (task.prompt_logprobs) task.listener->on_prompt(scored);
    for (const std::int64_t id : {0xC3, 0xA4, int{'x'}, int{'e'}}) task.listener->on_token({.id = id, .logprob = -1});
    task.listener->on_end(Finish::Stop);
    return nlohmann::json::parse(reply->response->body)["choices"][0];
  };
  const auto whole = choice({{"prompt", "äbe"}, {"echo", true}, {"logprobs", 0}});
  EXPECT_EQ(whole["text"], "äbeäx");
  EXPECT_EQ(whole["logprobs"]["text_offset"], nlohmann::json({0, 0, 0, 1, 2, 3, 3, 4, 5}));
  EXPECT_EQ(whole["logprobs"]["tokens"].size(), 9);
  const auto answer = choice({{"prompt", "äbe"}, {"logprobs", 0}});
  EXPECT_EQ(answer["text"], "äx");
  EXPECT_EQ(answer["logprobs"]["text_offset"], nlohmann::json({0, 0, 1, 2}));
}

TEST(TextResponse, CountsCachedTokensOfEachPromptOnce) {
  Bench bench({});
  const auto reply = bench.ask({{"prompt", {"abc", "abcd"}}, {"n", 2}});
  const auto tasks = bench.tasks();
  ASSERT_EQ(tasks.size(), 4);
  for (const TextTask& task : tasks) {
    task.listener->on_cached(3);
    task.listener->on_cached(2);  // it started over
    task.listener->on_end(Finish::Length);
  }
  ASSERT_TRUE(reply->response);
  const auto usage = nlohmann::json::parse(reply->response->body)["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 7);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 4);
}

}  // namespace
}  // namespace megatron::serve
