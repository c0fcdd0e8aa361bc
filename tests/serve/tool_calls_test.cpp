#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "megatron/base/files/file.h"
#include "megatron/serve/tools/json_object_scanner.h"
#include "megatron/serve/tools/tool_call_parser.h"
#include "megatron/serve/tools/tool_syntax.h"
#include "tests/serve/syntax_named.h"
#include "tests/testing/folders.h"

namespace megatron::serve {
namespace {

using nlohmann::json;

ToolParsing parsing(const std::string& syntax, bool live, bool one = false) {
  return {.syntax = &syntax_named(syntax),
          .names = {"f", "get_weather"},
          .one = one,
          .live = live,
          .new_id = [](std::size_t call) { return "id" + std::to_string(call); }};
}

/// The text and the calls that come of an answer which comes in pieces that end at `cuts`.
json read_in_pieces(const ToolParsing& how, const std::string& answer, const std::vector<std::size_t>& cuts) {
  ToolCallParser parser(how);
  ToolPiece all;
  std::size_t at = 0;
  for (const std::size_t cut : cuts) {
    all.add(parser.push(std::string_view(answer).substr(at, cut - at)));
    at = cut;
  }
  all.add(parser.push(std::string_view(answer).substr(at)));
  all.add(parser.finish());
  json calls = json::array();
  for (const ToolCallPiece& call : all.calls) calls.push_back({call.index, call.id, call.name, call.arguments});
  return {{"text", all.text}, {"calls", calls}, {"whole", parser.calls()}};
}

json answer_of(const std::string& text, const std::vector<std::pair<std::string, std::string>>& calls) {
  json list = json::array();
  for (const auto& [name, arguments] : calls)
    list.push_back({list.size(), "id" + std::to_string(list.size()), name, arguments});
  return {{"text", text}, {"calls", list}, {"whole", list.size()}};
}

struct Case {
  std::string syntax, answer, text;
  std::vector<std::pair<std::string, std::string>> calls = {};
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"Hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "", {{"f", "{\"a\": 1}"}}},
      {"Hermes",
       "Let me see.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>{\"arguments\": "
       "{\"x\": "
       "[\"}\", {\"y\": null}, -1.5e3, \"\\\"</tool_call>\"]}, \"name\": \"get_weather\"}</tool_call> Done. ",
       "Let me see. Done.",
       {{"f", "{}"}, {"get_weather", "{\"x\": [\"}\", {\"y\": null}, -1.5e3, \"\\\"</tool_call>\"]}"}}},
      // Without its closing, and with a key that models write too.
      {"Hermes",
       "<tool_call>{\"type\":\"function\",\"name\":\"f\",\"arguments\":{ \"ü\" : true } }",
       "",
       {{"f", "{ \"ü\" : true }"}}},
      {"Hermes", " a <tool <tool_calls> <tool_call x </tool_call>\n",
       " a <tool <tool_calls> <tool_call x </tool_call>\n"},
      {"Hermes",
       "<tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
       "<tool_call>",
       {{"f", "{}"}}},
      {"Llama", "{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}", "", {{"f", "{\"a\": \"b\"}"}}},
      {"Llama", "\n <|python_tag|> {\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "", {{"f", "{}"}}},
      {"Llama", "{\"name\": \"f\", \"arguments\": {}}; more", "; more", {{"f", "{}"}}},
      {"Llama", "Use {\"name\": \"f\", \"parameters\": {}}", "Use {\"name\": \"f\", \"parameters\": {}}"},
      {"Llama", "<|python_tag|>print(1)", "<|python_tag|>print(1)"},
      {"Llama", "{\"name\": \"Bob\", \"parameters\": {\"a\": 1}}\n",
       "{\"name\": \"Bob\", \"parameters\": {\"a\": 1}}\n"},
      {"Llama", " {\"answer\": {\"name\": \"f\", \"parameters\": {}}}",
       " {\"answer\": {\"name\": \"f\", \"parameters\": {}}}"},
      {"Mistral",
       "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": []}, \"id\": \"abcdefghi\"}, {\"name\": "
       "\"get_weather\", "
       "\"arguments\": {}}]",
       "",
       {{"f", "{\"a\": []}"}, {"get_weather", "{}"}}},
      {"Mistral", "[TOOL_CALL] [TOOL_CALLS]f[ARGS]{}", "[TOOL_CALL] [TOOL_CALLS]f[ARGS]{}"},
      {"Mistral", "[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}",
       "[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}"},
      {"Mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}", "", {{"f", "{}"}}},
      {"Nemotron", "Hm.\n<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>\n", "Hm.", {{"f", "{}"}}},
  };
  return all;
}

TEST(ToolCallParser, FindsCallsAndLeavesTheTextHoweverAnAnswerComes) {
  std::mt19937 random(5);
  for (const auto& [syntax, answer, text, calls] : cases())
    for (const bool live : {false, true}) {
      const ToolParsing how = parsing(syntax, live);
      const json expected = answer_of(text, calls);
      EXPECT_EQ(read_in_pieces(how, answer, {}), expected) << answer;
      for (std::size_t cut = 0; cut <= answer.size(); ++cut)
        EXPECT_EQ(read_in_pieces(how, answer, {cut}), expected) << answer << " cut at " << cut;
      for (int round = 0; round < 20; ++round) {
        std::vector<std::size_t> cuts;
        for (std::size_t at = random() % 6; at < answer.size(); at += random() % 6) cuts.push_back(at);
        EXPECT_EQ(read_in_pieces(how, answer, cuts), expected) << answer;
      }
    }
}

TEST(ToolCallParser, GivesCallsThatDoNotEndOrAreNoneAsText) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"b\\u00e4\"]}}";
  for (std::size_t size = 0; size < call.size(); ++size)
    EXPECT_EQ(read_in_pieces(parsing("Hermes", false), call.substr(0, size), {}), answer_of(call.substr(0, size), {}));
  for (const char* object :
       {"{\"name\": \"g\", \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {\"a\": 1,}}",
        "{\"name\": \"f\", \"arguments\": [1]}", "{\"name\": \"f\", \"arguments\": \"{}\"}", "{\"name\": \"f\"}",
        "{\"name\": 1, \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {}, \"arguments\": {}}", "{}",
        "{\"name\": \"f\", \"arguments\": {\"a\": 01}}", "{\"name\": \"f\", \"arguments\": {\"a\": tru}}",
        "{\"name\": \"f\", \"arguments\": {\"a\": \"\n\"}}", "{\"name\": \"f\", \"arguments\": {\"a\": \"\\x\"}}",
        "{\"name\": \"f\" \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {]}", "[]", "f(1)",
        "{'name': 'f', 'arguments': {}}"}) {
    const std::string answer = "<tool_call>\n" + std::string(object) + "\n</tool_call>";
    EXPECT_EQ(read_in_pieces(parsing("Hermes", false), answer, {}), answer_of(answer, {}));
  }
  const std::string twice = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, \"a\": 2}}</tool_call>";
  EXPECT_EQ(read_in_pieces(parsing("Hermes", false), twice, {}), answer_of("", {{"f", "{\"a\": 1, \"a\": 2}"}}));
  const std::string open = "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}] Done";
  EXPECT_EQ(read_in_pieces(parsing("Nemotron", false), open, {}), answer_of(" Done", {{"f", "{}"}}));
  // A good one after a bad one, and the other way.
  const std::string good = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
                    bad = "<tool_call>{]</tool_call>";
  EXPECT_EQ(read_in_pieces(parsing("Hermes", false), bad + good, {}), answer_of(bad, {{"f", "{}"}}));
  EXPECT_EQ(read_in_pieces(parsing("Hermes", false), good + bad, {}), answer_of(bad, {{"f", "{}"}}));
  EXPECT_EQ(read_in_pieces(parsing("Mistral", false), "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"na", {}),
            answer_of(" {\"na", {{"f", "{}"}}));
}

TEST(ToolCallParser, PassesOnArgumentsAsTheyAreWritten) {
  ToolCallParser parser(parsing("Hermes", true));
  EXPECT_TRUE(parser.push("<tool_call>\n{\"name\": \"f\", \"arguments\": ").empty());
  ToolPiece piece = parser.push("{\"a\"");
  ASSERT_EQ(piece.calls.size(), 1);
  EXPECT_EQ(piece.calls[0].id, "id0");
  EXPECT_EQ(piece.calls[0].name, "f");
  EXPECT_EQ(piece.calls[0].arguments, "{\"a\"");
  piece = parser.push(": 1}");
  ASSERT_EQ(piece.calls.size(), 1);
  EXPECT_EQ(piece.calls[0].id, "");
  EXPECT_EQ(piece.calls[0].arguments, ": 1}");
  EXPECT_EQ(parser.calls(), 0);
  EXPECT_TRUE(parser.push("}\n</tool_c").empty());
  EXPECT_EQ(parser.calls(), 1);
  // What was said cannot be taken back.
  const json broken =
      read_in_pieces(parsing("Hermes", true), "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": x y}}", {});
  EXPECT_EQ(broken["calls"][0][3], "{\"a\": x y}}");
  EXPECT_EQ(broken["whole"], 0);
  EXPECT_EQ(
      read_in_pieces(parsing("Hermes", true), "<tool_call>{\"name\": \"f\", \"arguments\": {\"a", {})["calls"][0][3],
      "{\"a");
}

TEST(ToolCallParser, EndsAnAnswerWithItsOneCall) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}";
  for (const bool live : {false, true}) {
    ToolCallParser parser(parsing("Hermes", live, true));
    ToolPiece all = parser.push("a " + call.substr(0, call.size() - 1));
    EXPECT_FALSE(parser.full());
    all.add(parser.push("}</tool_call>" + call + " more"));
    EXPECT_TRUE(parser.full());
    all.add(parser.finish());
    EXPECT_EQ(all.calls.size(), 1);
    EXPECT_EQ(all.text, "a");
  }
}

TEST(ToolCallParser, TakesAnyText) {
  std::mt19937 random(8);
  const std::vector<std::string> parts = {"<tool_call>",
                                          "</tool_call>",
                                          "{\"name\": \"f\", \"arguments\": ",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          "\"",
                                          "\\",
                                          "[TOOL_CALLS]",
                                          "<|python_tag|>",
                                          "\n",
                                          "1",
                                          "\xFF",
                                          "\"parameters\": ",
                                          "\"name\": ",
                                          "\"f\"",
                                          ": ",
                                          "ä"};
  for (const ToolSyntax& syntax : tool_syntaxes())
    for (int round = 0; round < 500; ++round) {
      std::string answer;
      for (std::size_t i = random() % 12; i > 0; --i) answer += parts[random() % parts.size()];
      const ToolParsing how = parsing(std::string(syntax.name), round % 2 > 0);
      const json whole = read_in_pieces(how, answer, {});
      EXPECT_EQ(whole.dump(-1, ' ', false, json::error_handler_t::replace),
                read_in_pieces(how, answer, {answer.size() / 2}).dump(-1, ' ', false, json::error_handler_t::replace));
      if (whole["calls"].empty()) {
        EXPECT_EQ(whole["text"], answer);
      }
    }
}

TEST(JsonObjectScanner, EndsWhereTheObjectDoes) {
  for (const char* text :
       {"{}", "{ }", R"({"a": {"b": [1, [], {}]}, "c": "}"})", R"({"\u00e4\"": -1.5E+3})", R"({"a":true,"b":null})"}) {
    JsonObjectScanner scanner;
    const std::string_view object = text;
    for (std::size_t i = 0; i < object.size(); ++i)
      EXPECT_EQ(scanner.push(object[i]),
                i + 1 < object.size() ? JsonObjectScanner::Step::More : JsonObjectScanner::Step::Done)
          << text << " at " << i;
  }
  for (const char* text : {"[", "a", "{a", "{\"a\" 1", "{\"a\": 1]", "{\"a\": 1,}", "{\"a\": [1,]", "{\"a\"::", "{,",
                           "{\"a\": +1,", "{\"a\": nul,", "{\"a\": \"\\u00g"}) {
    JsonObjectScanner scanner;
    const std::string_view bad = text;
    for (std::size_t i = 0; i < bad.size(); ++i)
      EXPECT_EQ(scanner.push(bad[i]), i + 1 < bad.size() ? JsonObjectScanner::Step::More : JsonObjectScanner::Step::Bad)
          << text << " at " << i;
  }
}

/// The name of the syntax of a template, which is as its publisher wrote it.
std::string syntax_in(const std::filesystem::path& file) {
  const text::ChatTemplate chat(read_file(file, 1 << 18), {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, "test");
  const ToolSyntax* syntax = tool_syntax_of(chat);
  return syntax == nullptr ? "" : std::string(syntax->name);
}

TEST(ToolSyntax, IsFoundInTemplatesAsTheyArePublished) {
  const auto folder = std::filesystem::path(unpacked_folder()) / "golden/chat/published";
  // By what transformers makes of a call (golden/chat/rendered.json); all others write calls otherwise, or none.
  const std::map<std::string, std::string> known = {{"Bielik-11B-v3.0-Instruct", "Hermes"},
                                                    {"MiMo-VL", "Hermes"},
                                                    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Hermes"},
                                                    {"Qwen-QwQ-32B", "Hermes"},
                                                    {"Qwen-Qwen2.5-7B-Instruct", "Hermes"},
                                                    {"Qwen-Qwen3-0.6B", "Hermes"},
                                                    {"Reka-Edge", "Hermes"},
                                                    {"ibm-granite-granite-4.0", "Hermes"},
                                                    {"meta-llama-Llama-3.1-8B-Instruct", "Llama"},
                                                    {"meta-llama-Llama-3.2-3B-Instruct", "Llama"},
                                                    {"mistralai-Mistral-Nemo-Instruct-2407", "Mistral"},
                                                    {"NVIDIA-Nemotron-Nano-v2", "Nemotron"},
                                                    {"unsloth-Apriel-1.5", "Apriel"}};
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const std::string name = syntax_in(entry.path()); !name.empty()) found[entry.path().stem().string()] = name;
  EXPECT_EQ(found, known);
  for (const ToolSyntax& syntax : tool_syntaxes())
    EXPECT_THAT(known_tool_syntaxes(), ::testing::HasSubstr(std::string(syntax.name)));
}

TEST(Thinking, IsKnownByTheTemplateAndWhereItsPromptEnds) {
  const auto folder = std::filesystem::path(unpacked_folder()) / "golden/chat/published";
  const std::vector<text::ChatMessage> talk = {{.role = "user", .content = "Hi </think>"}};
  const auto thinking = [&](const std::string& name) {
    const text::ChatTemplate chat(read_file(folder / (name + ".jinja"), 1 << 18),
                                  {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, "test");
    return thinking_behind(chat, chat.prompt(talk));
  };
  EXPECT_EQ(thinking("Qwen-Qwen3-0.6B"), Thinking::Possible);
  EXPECT_EQ(thinking("NVIDIA-Nemotron-Nano-v2"), Thinking::Begun);
  EXPECT_EQ(thinking("Qwen-QwQ-32B"), Thinking::None);  // its prompt is "<think>\n</think>" unless it is asked to think
  EXPECT_EQ(thinking("Qwen-Qwen2.5-7B-Instruct"), Thinking::None);
}

}  // namespace
}  // namespace megatron::serve
