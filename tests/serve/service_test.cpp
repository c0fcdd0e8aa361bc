#include "megatron/serve/service.h"

#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/serve/api/api_error.h"
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
  Service service({.model = "m",
                   .tokens = {"secret"},
                   .pictures = {{"curves", draw},
                                {"early", too_early},
                                {"absent", too_early, [] { return false; }},
                                {"also", draw, [] { return true; }}}},
                  bench.tokenizer, std::nullopt, bench.queue, bench.metrics);
  const auto get = [&](const std::string& path, const std::string& token) {
    const auto reply = std::make_shared<Heard>();
    service.handle({.method = "GET", .path = path, .headers = {{"authorization", "Bearer " + token}}, .body = ""},
                   reply);
    return *reply->response;
  };
  EXPECT_EQ(get("/run", "secret").body, R"({"pictures":["curves","early","also"]})");
  EXPECT_EQ(get("/run/curves.svg", "secret").body, "<svg/>");
  EXPECT_EQ(get("/run/curves.svg", "secret").type, "image/svg+xml");
  EXPECT_EQ(get("/run/curves.svg", "other").status, 401);
  EXPECT_EQ(get("/run/schedule.svg", "secret").status, 404);
  EXPECT_EQ(get("/run/early.svg", "secret").status, 404);
  EXPECT_EQ(get("/run/absent.svg", "secret").status, 404);
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

/// In the way of Hermes.
constexpr const char* kToolTemplate =
    "{% if tools %}{{ tools | tojson }}{{ '\\n' }}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": "
    "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

/// A service that writes as `jinja` says, whose texts end with token 0.
struct ToolBench : Bench {
  explicit ToolBench(const std::string& jinja = kToolTemplate)
      : Bench(QueueLimits{}),
        calling({.model = "m", .context = 1000, .vocab = 256, .ends = {0}}, tokenizer,
                text::ChatTemplate(jinja, {}, "test"), queue, metrics) {}

  std::shared_ptr<Heard> chat(nlohmann::json body) {
    body["messages"] = body.value("messages", nlohmann::json{{{"role", "user"}, {"content", "hi"}}});
    const auto reply = std::make_shared<Heard>();
    calling.handle(posted(body, "/v1/chat/completions"), reply);
    return reply;
  }
  /// The message and the reason of an answer that the model writes token by token.
  nlohmann::json answer(const nlohmann::json& body, const std::string& text) {
    const auto reply = chat(body);
    const TextTask task = tasks().at(0);
    std::size_t written = 0;
    bool goes_on = true;
    for (; goes_on && written < text.size(); ++written)
      goes_on = task.listener->on_token({.id = static_cast<unsigned char>(text[written])});
    task.listener->on_end(Finish::Stop);
    nlohmann::json choice;
    if (reply->response) {
      choice = nlohmann::json::parse(reply->response->body)["choices"][0];
    } else {
      choice = {{"message", {{"content", nullptr}}}};
      for (std::size_t at = 0; (at = reply->streamed.find("data: {", at)) != std::string::npos; ++at)
        add_piece(choice,
                  nlohmann::json::parse(reply->streamed.substr(at + 6, reply->streamed.find('\n', at) - at - 6)));
    }
    nlohmann::json& message = choice["message"];
    for (auto& call : message.value("tool_calls", nlohmann::json::array())) ids.push_back(call["id"]);
    return {{"content", message["content"]},
            {"calls", calls_in(message)},
            {"finish", choice["finish_reason"]},
            {"written", written}};
  }
  /// As a client puts a stream together.
  static void add_piece(nlohmann::json& choice, const nlohmann::json& event) {
    const nlohmann::json& piece = event["choices"][0];
    nlohmann::json& message = choice["message"];
    choice["finish_reason"] = piece["finish_reason"];
    if (const auto content = piece["delta"].find("content"); content != piece["delta"].end() && content->is_string())
      message["content"] = message["content"].is_null()
                               ? *content
                               : nlohmann::json(message["content"].get<std::string>() + content->get<std::string>());
    for (const auto& call : piece["delta"].value("tool_calls", nlohmann::json::array())) {
      const auto index = call["index"].get<std::size_t>();
      if (call.contains("id")) {
        message["tool_calls"].push_back(call);
      } else {
        nlohmann::json& arguments = message["tool_calls"][index]["function"]["arguments"];
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
    }
  }
  static nlohmann::json calls_in(const nlohmann::json& message) {
    nlohmann::json calls = nlohmann::json::array();
    for (const auto& call : message.value("tool_calls", nlohmann::json::array())) {
      EXPECT_EQ(call["type"], "function");
      calls.push_back({call["function"]["name"], call["function"]["arguments"]});
    }
    return calls;
  }

  Service calling;
  std::vector<std::string> ids;  ///< of all calls
};

const nlohmann::json kTools = nlohmann::json::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
  {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["a"]}}},
  {"type": "function", "function": {"name": "g"}}])");

TEST(Service, WritesToolsAndCallsByTheChatTemplate) {
  ToolBench bench;
  const auto prompt = [&](const nlohmann::json& body) {
    const auto reply = bench.chat(body);
    EXPECT_FALSE(reply->response) << reply->response->body;
    std::string text;
    const std::vector<TextTask> tasks = bench.tasks();
    for (const std::int64_t id : tasks.at(0).prompt) text += static_cast<char>(id);
    return text;
  };
  const nlohmann::json one = {{{"type", "function"}, {"function", {{"name", "f"}, {"strict", true}}}}};
  EXPECT_EQ(prompt({{"tools", one}}), R"([{"function": {"name": "f"}, "type": "function"}])"
                                      "\nuser:hi\nassistant:");
  EXPECT_EQ(prompt({{"tools", one}, {"tool_choice", "none"}}), "user:hi\nassistant:");
  const nlohmann::json talk = nlohmann::json::parse(R"([{"role": "user", "content": "hi"}, {"role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"b\":1,\"a\":[]}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "5"}])");
  EXPECT_EQ(prompt({{"messages", talk}}),
            "user:hi\nassistant:<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": []}}\n</tool_call>\n"
            "tool:5\nassistant:");
}

TEST(Service, RefusesToolsThatTheChatTemplateCannotWrite) {
  const auto refusal = [](ToolBench& bench, const nlohmann::json& body) -> std::string {
    const auto reply = bench.chat(body);
    if (!reply->response) return "accepted";
    EXPECT_EQ(reply->response->status, 400);
    const auto error = nlohmann::json::parse(reply->response->body)["error"];
    return error["param"].get<std::string>() + ": " + error["message"].get<std::string>();
  };
  ToolBench plain("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_THAT(refusal(plain, {{"tools", kTools}}),
              testing::StartsWith("tools: 'tools' need a model whose chat template"));
  EXPECT_EQ(refusal(plain, {{"tools", kTools}, {"tool_choice", "none"}}), "accepted");
  EXPECT_EQ(refusal(plain, {{"tools", nlohmann::json::array()}}), "accepted");
  const nlohmann::json talk = nlohmann::json::parse(R"([{"role": "assistant", "tool_calls": [{"id": "c", "type":
    "function", "function": {"name": "f", "arguments": "{}"}}]}])");
  EXPECT_THAT(refusal(plain, {{"messages", talk}}), testing::StartsWith("messages: 'tool_calls' in messages"));
  ToolBench other("{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}");
  EXPECT_THAT(refusal(other, {{"tools", kTools}}), testing::HasSubstr("Hermes (Hermes 2 and 3, Qwen 2.5"));
  ToolBench known;
  nlohmann::json wrong = kTools;
  wrong[1]["function"]["parameters"] = {{"properties", {{"a", {{"not", 1}}}}}};
  EXPECT_EQ(refusal(known, {{"tools", wrong}}), "accepted");
  EXPECT_THAT(refusal(known, {{"tools", wrong}, {"tool_choice", "required"}}),
              testing::StartsWith("tools[1].function.parameters: 'tools[1].function.parameters': 'not' in the schema"));
}

TEST(Service, AnswersWithCalls) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const nlohmann::json f = nlohmann::json::array({"f", "{\"a\": 1}"});
  for (const bool stream : {false, true}) {
    ToolBench bench;
    const nlohmann::json asked = {{"tools", kTools}, {"stream", stream}};
    EXPECT_EQ(bench.answer(asked, call), nlohmann::json({{"content", nullptr},
                                                         {"calls", nlohmann::json::array({f})},
                                                         {"finish", "tool_calls"},
                                                         {"written", call.size()}}));
    const std::string both = "Hm.\n" + call + "\n" + call;
    EXPECT_EQ(bench.answer(asked, both), nlohmann::json({{"content", "Hm."},
                                                         {"calls", nlohmann::json::array({f, f})},
                                                         {"finish", "tool_calls"},
                                                         {"written", both.size()}}));
    // The first call ends the text.
    nlohmann::json single = asked;
    single["parallel_tool_calls"] = false;
    EXPECT_EQ(bench.answer(single, call + "\n" + call)["written"], call.size() - 13);
    const std::string none = "No <tool_call> {\"name\": \"h\", \"arguments\": {}}.\n";
    const nlohmann::json text = {
        {"content", none}, {"calls", nlohmann::json::array()}, {"finish", "stop"}, {"written", none.size()}};
    EXPECT_EQ(bench.answer(asked, none), text);
    nlohmann::json unasked = asked;
    unasked["tool_choice"] = "none";
    EXPECT_EQ(bench.answer(unasked, call)["content"], call);
    EXPECT_EQ(bench.answer(unasked, call)["finish"], "stop");
    // A stop sequence ends a text wherever it comes.
    nlohmann::json stopped = asked;
    stopped["stop"] = "\n</tool";
    EXPECT_EQ(bench.answer(stopped, call)["calls"], nlohmann::json::array({f}));
    ASSERT_EQ(bench.ids.size(), 5);
    EXPECT_EQ(std::set(bench.ids.begin(), bench.ids.end()).size(), 5);
    for (const std::string& id : bench.ids) EXPECT_TRUE(id.starts_with("call_")) << id;
  }
}

TEST(Service, KeepsAnswersToTheCallsThatAreAskedFor) {
  ToolBench bench;
  std::mt19937 random(6);
  int calls = 0;
  for (const char* choice : {R"("required")", R"({"type": "function", "function": {"name": "f"}})"})
    for (int round = 0; round < 10; ++round) {
      const auto reply = bench.chat({{"tools", kTools}, {"tool_choice", nlohmann::json::parse(choice)}});
      const TextTask task = bench.tasks().at(0);
      bool ended = false;
      for (int i = 0; i < 400 && !ended; ++i) {
        const std::vector<bool>& allowed = task.mask->allowed();
        std::vector<std::int64_t> open;
        for (std::size_t id = 0; id < allowed.size(); ++id)
          if (allowed[id]) open.push_back(static_cast<std::int64_t>(id));
        ASSERT_FALSE(open.empty());
        const std::int64_t next = open[random() % open.size()];
        task.mask->take(next);
        task.listener->on_token({.id = next});
        ended = next == 0;
      }
      task.listener->on_end(ended ? Finish::Stop : Finish::Length);
      const auto answered = nlohmann::json::parse(reply->response->body)["choices"][0];
      EXPECT_EQ(answered["finish_reason"], ended ? "tool_calls" : "length");
      for (const auto& call : answered["message"].value("tool_calls", nlohmann::json::array())) {
        const auto arguments = nlohmann::json::parse(call["function"]["arguments"].get<std::string>());
        if (call["function"]["name"] == "f") {
          EXPECT_TRUE(arguments["a"] >= 1 && arguments["a"] <= 9) << arguments;
        } else {
          EXPECT_EQ(arguments, nlohmann::json::object());
          EXPECT_STREQ(choice, "\"required\"");
        }
        ++calls;
      }
    }
  EXPECT_GE(calls, 20);
}

TEST(Service, LetsAModelThinkBeforeTheCallThatIsAskedFor) {
  const std::string call = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
  const std::string thinking = std::string(kToolTemplate) + "{# <think> </think> #}";
  const nlohmann::json asked = {{"tools", kTools}, {"tool_choice", "required"}};
  /// How many of its tokens a model may write so, and whether it may end then.
  const auto taken = [&](const std::string& jinja, const std::string& text) {
    ToolBench bench(jinja);
    bench.chat(asked);
    const TextTask task = bench.tasks().at(0);
    std::size_t count = 0;
    for (; count < text.size() && task.mask->allowed()[static_cast<unsigned char>(text[count])]; ++count)
      task.mask->take(static_cast<unsigned char>(text[count]));
    return std::pair(count, bool{task.mask->allowed()[0]});
  };
  const std::string thought = "<think>\nWhich?\n</think>\n\n" + call, begun = "Which?</think>" + call;
  EXPECT_EQ(taken(thinking, thought), (std::pair(thought.size(), true)));
  EXPECT_EQ(taken(thinking, call), (std::pair(call.size(), true)));
  EXPECT_EQ(taken(thinking, begun), (std::pair(std::size_t{0}, false)));
  EXPECT_EQ(taken(thinking + "<think>\n", begun), (std::pair(begun.size(), true)));
  const std::size_t both = std::string("<t").size();  // with which a call begins too
  EXPECT_EQ(taken(thinking + "<think>\n</think>", thought), std::pair(both, false));
  EXPECT_EQ(taken(kToolTemplate, thought), std::pair(both, false));
  ToolBench bench(thinking);
  const auto answered = bench.answer(asked, thought);
  EXPECT_EQ(answered["content"], "<think>\nWhich?\n</think>");
  EXPECT_EQ(answered["calls"].size(), 1);
  EXPECT_EQ(answered["finish"], "tool_calls");
}

TEST(Service, GivesIdsThatTheTemplateTakes) {
  // Mistral's takes 9 letters and digits alone.
  ToolBench bench(
      "{{ tools }}{% for m in messages %}{{ m.content }}{% if m.tool_calls is defined %}[TOOL_CALLS][{% for c in "
      "m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('9') }}{% endif %}{{ c.function | tojson }}"
      "{% endfor %}]{% endif %}{% endfor %}");
  const auto answer = bench.answer({{"tools", kTools}}, "[TOOL_CALLS][{\"name\": \"g\", \"arguments\": {}}]");
  EXPECT_EQ(answer["finish"], "tool_calls");
  ASSERT_EQ(bench.ids.size(), 1);
  EXPECT_THAT(bench.ids[0], testing::MatchesRegex("[A-Za-z0-9]{9}"));
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
