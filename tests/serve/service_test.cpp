#include "megatron/serve/service.h"

#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
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

struct Bench {
  explicit Bench(const QueueLimits& limits) : queue(limits) {}

  std::shared_ptr<Heard> ask(const nlohmann::json& body) {
    const auto reply = std::make_shared<Heard>();
    service.handle({.method = "POST",
                    .path = "/v1/completions",
                    .headers = {{"content-type", "application/json"}},
                    .body = body.dump()},
                   reply);
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
