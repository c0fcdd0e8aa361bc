#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "megatron/serve/api/api_error.h"
#include "megatron/serve/grammar/grammar_mask.h"
#include "megatron/serve/grammar/json_schema.h"
#include "megatron/text/vocabulary.h"

namespace megatron::serve {
namespace {

using Ordered = nlohmann::ordered_json;

bool matches(const Grammar& grammar, const std::string& text) {
  GrammarAutomaton automaton(grammar);
  std::int32_t state = automaton.start();
  for (const char c : text) {
    state = automaton.next(state, static_cast<std::uint8_t>(c));
    if (state == GrammarAutomaton::kDead) return false;
  }
  return automaton.accepts(state);
}

void expect(const std::string& schema, const std::vector<std::string>& good, const std::vector<std::string>& bad) {
  const Grammar grammar = grammar_of_schema(Ordered::parse(schema));
  for (const std::string& text : good) EXPECT_TRUE(matches(grammar, text)) << schema << " and " << text;
  for (const std::string& text : bad) EXPECT_FALSE(matches(grammar, text)) << schema << " and " << text;
}

TEST(JsonSchema, IsTheTextsThatSatisfyIt) {
  expect("{}", {"1", "\"a\"", "[1, 2]", "{\"a\": {\"b\": []}}", "null", "-0.5e+10", "{}", "[\n  1,\n  2\n]"},
         {"", "01", "1.", "[1,]", "{a: 1}", "'a'", "nul", "[1", "+1", "\"\n\"", "\"\\x\"", "1 "});
  expect(R"({"type": "string"})", {"\"\"", "\"ä€😀\"", R"("\"\\\/\u00e4\n")"},
         {"\"\xff\"", "\"\xc3\"", R"("\ud800")", "\"\xed\xa0\x80\"", "\"\t\"", "\"a"});
  expect(R"({"type": "string", "minLength": 1, "maxLength": 2})", {"\"a\"", "\"ää\""}, {"\"\"", "\"abc\""});
  expect(R"({"type": "integer"})", {"0", "-12"}, {"1.0", "1e2", "\"1\"", "-", "012"});
  expect(R"({"enum": ["a", 1, null, {"b": [true]}]})", {"\"a\"", "1", "null", "{\"b\":[true]}"}, {"\"b\"", "2"});
  expect(R"({"const": "x\"y"})", {R"("x\"y")"}, {"\"x\""});
  expect(R"({"enum": ["a", 1, 2.0, 2.5], "type": "integer", "title": "t"})", {"1", "2.0"}, {"\"a\"", "2.5"});
  expect(R"({"enum": ["a", 1, null], "type": ["string", "null"]})", {"\"a\"", "null"}, {"1"});
  expect(R"({"type": ["integer", "null"]})", {"1", "null"}, {"true"});
  expect(R"({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3})",
         {"[true]", "[true,false, true]"}, {"[]", "[true,true,true,true]", "[1]"});
  expect(R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"});
}

TEST(JsonSchema, ListsPropertiesInTheirOrder) {
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"},
    "c": {"type": "null"}}, "required": ["b"], "additionalProperties": false})";
  expect(schema, {R"({"a": 1, "b": "x", "c": null})", R"({"b":"x"})", R"({"a":1,"b":""})", "{\n  \"b\": \"x\"\n}"},
         {"{}", R"({"a": 1})", R"({"b": "x", "a": 1})", R"({"b": "x",})", R"({, "b": "x"})", R"({"b": "x", "d": 1})"});
  expect(R"({"properties": {"a": {}, "b": {}}})", {"{}", R"({"a": []})", R"({"b": 1})", R"({"a": 1, "b": 2})"},
         {R"({"b": 2, "a": 1})"});
  expect(R"({"type": "object", "additionalProperties": {"type": "integer"}})", {"{}", R"({"x": 1, "y": 2})"},
         {R"({"x": "a"})"});
  expect(R"({"type": "object", "additionalProperties": false})", {"{}"}, {R"({"a": 1})"});
}

/// Every object of some of a, b, c in their order, with as many members as the bounds and those that are required say.
TEST(JsonSchema, CountsListedProperties) {
  for (int least = 0; least <= 4; ++least)
    for (int most = -1; most <= 4; ++most)
      for (unsigned required = 0; required < 8; ++required) {
        Ordered schema = Ordered::parse(R"({"properties": {"a": {}, "b": {}, "c": {}}, "required": []})");
        const std::vector<std::string> names = {"a", "b", "c"};
        for (std::size_t i = 0; i < 3; ++i)
          if ((required >> i & 1U) != 0) schema["required"].push_back(names[i]);
        if (least > 0) schema["minProperties"] = least;
        if (most >= 0) schema["maxProperties"] = most;
        std::vector<std::string> good, bad;
        for (unsigned set = 0; set < 8; ++set) {
          Ordered object = Ordered::object();
          for (std::size_t i = 0; i < 3; ++i)
            if ((set >> i & 1U) != 0) object[names[i]] = 1;
          const int size = static_cast<int>(object.size());
          const bool fits = (set & required) == required && size >= least && (most < 0 || size <= most);
          (fits ? good : bad).push_back(object.dump());
        }
        if (good.empty())
          EXPECT_THROW(grammar_of_schema(schema), ApiError) << schema;
        else
          expect(schema.dump(), good, bad);
      }
}

TEST(JsonSchema, CountsPropertiesOfAnyName) {
  expect(R"({"type": "object", "minProperties": 1})", {R"({"x": 1})", R"({"x": 1, "y": {}})"}, {"{}", "[1]"});
  expect(R"({"maxProperties": 2, "additionalProperties": {"type": "integer"}})", {"{}", R"({"x": 1, "y": 2})"},
         {R"({"x": 1, "y": 2, "z": 3})", R"({"x": "a"})"});
  expect(R"({"maxProperties": 0})", {"{}"}, {R"({"x": 1})"});
}

/// Every list of up to four of the values.
TEST(JsonSchema, KeepsElementsDifferent) {
  for (int least = 0; least <= 4; ++least)
    for (int most = -1; most <= 4; ++most) {
      Ordered schema = Ordered::parse(R"({"items": {"$ref": "#/$defs/e"}, "$defs": {"e": {"enum": ["a", 1, null, 1.0]}},
          "uniqueItems": true})");
      if (least > 0) schema["minItems"] = least;
      if (most >= 0) schema["maxItems"] = most;
      const std::vector<std::string> values = {"\"a\"", "1", "null"};
      std::vector<std::string> good, bad;
      for (std::size_t code = 0; code < 256; ++code) {
        std::vector<std::size_t> list;
        for (std::size_t rest = code; rest > 0; rest /= 4)
          if (rest % 4 > 0) list.push_back(rest % 4 - 1);
        std::string text;
        for (const std::size_t i : list) text += (text.empty() ? "" : ", ") + values[i];
        const int size = static_cast<int>(list.size());
        std::ranges::sort(list);
        const bool differ = std::ranges::adjacent_find(list) == list.end();
        (differ && size >= least && (most < 0 || size <= most) ? good : bad).push_back("[" + text + "]");
      }
      if (good.empty())
        EXPECT_THROW(grammar_of_schema(schema), ApiError) << schema;
      else
        expect(schema.dump(), good, bad);
    }
  expect(R"({"type": "array", "items": {"type": "boolean"}, "uniqueItems": true})", {"[]", "[false,true]", "[true]"},
         {"[true, true]", "[false, true, false]"});
  expect(R"({"type": "array", "uniqueItems": false, "maxItems": 2})", {"[1, 1]"}, {"[1, 1, 1]"});
  expect(R"({"type": "array", "uniqueItems": true, "maxItems": 1})", {"[]", "[[2]]"}, {"[1, 1]"});
}

TEST(JsonSchema, MayReferToItself) {
  const std::string tree = R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties":
    {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["value", "next"]}}})";
  expect(tree, {R"({"value": 1, "next": {"value": 2, "next": null}})"}, {R"({"value": 1, "next": {"value": 2}})"});
}

TEST(JsonSchema, NeverLeadsWhereATextCannotEnd) {
  const std::string endless = R"("$defs": {"e": {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 1}}})";
  expect(R"({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/e"}], )" + endless, {"null"}, {"[]"});
  const Grammar grammar = grammar_of_schema(Ordered::parse(
      R"({"type": "object", "properties": {"a": {"$ref": "#/$defs/e"}, "b": {"type": "null"}}, )" + endless));
  EXPECT_TRUE(matches(grammar, R"({"b": null})"));
  GrammarAutomaton automaton(grammar);
  std::int32_t state = automaton.start();
  for (const char c : std::string("{\"")) state = automaton.next(state, static_cast<std::uint8_t>(c));
  EXPECT_EQ(automaton.next(state, 'a'), GrammarAutomaton::kDead);
  EXPECT_NE(automaton.next(state, 'b'), GrammarAutomaton::kDead);
}

TEST(JsonSchema, KeepsNumbersOf64BitsAndReferencesOfUris) {
  expect(R"({"enum": [18446744073709551615, -9223372036854775808, 0.5]})",
         {"18446744073709551615", "-9223372036854775808", "0.5"}, {"1"});
  expect(R"({"$ref": "#/$defs/a%20b%25", "$defs": {"a b%": {"type": "null"}}})", {"null"}, {"1"});
}

TEST(JsonSchema, IsRefusedWhereItSaysMoreThanIsKept) {
  for (const char* schema :
       {R"({"patternProperties": {"a": {}}})", R"({"type": "array", "uniqueItems": true})", R"({"type": "file"})",
        R"({"uniqueItems": true, "items": {"type": "string"}})", R"({"uniqueItems": 1})",
        R"({"uniqueItems": true, "prefixItems": [{"const": 1}], "items": {"const": 1}})",
        R"({"uniqueItems": true, "items": {"enum": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}})",
        R"({"uniqueItems": true, "items": {"type": "boolean", "not": {}}})",
        R"({"uniqueItems": true, "items": {"const": 1}, "minItems": 2})", R"({"minProperties": 2})",
        R"({"minProperties": 1, "maxProperties": 0})", R"({"maxProperties": -1})", R"({"not": {}})", R"({"if": {}})",
        R"({"type": "string", "contentEncoding": "base64"})", R"({"anyOf": [{}], "required": []})",
        R"({"oneOf": [{}], "type": "string"})", R"({"allOf": [{}], "items": {}})", R"({"type": "string", "enum": [1]})",
        R"({"type": ["string", "null"], "const": 1})", R"({"type": "text", "const": 1})",
        R"({"const": 1, "enum": [1]})", R"({"enum": ["a"], "maxLength": 0})",
        R"({"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": {"type": "string"}}})",
        R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b", "maxLength": 1},
        "b": {"type": "string"}}})",
        "5", "false", R"({"enum": []})", R"({"$ref": "#/$defs/none"})", R"({"$ref": "http://a/b"})", R"({"$ref": "#"})",
        R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", R"({"allOf": [{}, {}]})", R"({"required": ["a"]})",
        R"({"type": "object", "required": ["a"]})", R"({"type": "string", "minLength": 3, "maxLength": 2})",
        R"({"type": "string", "maxLength": -1})", R"({"type": "string", "maxLength": 99999999})", R"({"anyOf": {}})",
        R"({"type": []})",
        R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
        "b": {"$ref": "#/$defs/a"}}})",
        R"({"properties": {"a": {"items": {"not": {}}}}})",
        // Without an end: each text would hold another one.
        R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
        R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})",
        R"({"type": "object", "properties": {"a": {}}, "additionalProperties": "x"})",
        R"({"type": "object", "additionalProperties": 1})", R"({"enum": [123456789012345678901234567890]})",
        R"({"const": {"a": [-9223372036854775809]}})"}) {
    try {
      grammar_of_schema(Ordered::parse(schema));
      ADD_FAILURE() << schema;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      EXPECT_EQ(error.param, "response_format");
    }
  }
  Ordered deep = Ordered::object();
  for (int i = 0; i < 100; ++i) deep = {{"type", "array"}, {"items", deep}};
  EXPECT_THROW(grammar_of_schema(deep), ApiError);
  Ordered wide = {{"type", "object"}, {"properties", Ordered::object()}};
  for (int i = 0; i < 2000; ++i) wide["properties"]["p" + std::to_string(i)] = {{"type", "string"}, {"maxLength", 200}};
  EXPECT_THROW(grammar_of_schema(wide), ApiError);
  EXPECT_THROW(grammar_of_schema({{"const", std::string(300'000, 'a')}}), ApiError);
  EXPECT_THROW(grammar_of_schema({{"anyOf", Ordered(100'000, Ordered::object())}}), ApiError);
}

/// Tokens that cut JSON at other places than its grammar does.
std::vector<std::string> tokens() {
  std::vector<std::string> all = {"",   "{\"",  "\":",  "\", \"", " \"", "},", "[1", "true", "null",  "tru", "\"a\"",
                                  "]}", "\xC3", "\xA4", "12",     ".5",  "e1", "}",  "\n  ", "\\u00", "1, 2"};
  for (int byte = 0x20; byte < 0x7F; ++byte) all.emplace_back(1, static_cast<char>(byte));
  return all;
}

TEST(GrammarMask, AllowsTheTokensAfterWhichTheTextCanGoOn) {
  const auto grammar = std::make_shared<const Grammar>(grammar_of_schema(Ordered::parse(
      R"({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}, "b": {}}})")));
  const auto trie = std::make_shared<const TokenTrie>(tokens());
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    GrammarMask mask(grammar, trie, {0});
    GrammarAutomaton automaton(*grammar);
    std::string text;
    for (int step = 0; step < 40; ++step) {
      const std::vector<bool> allowed = mask.allowed();
      std::vector<std::int64_t> open;
      for (std::size_t id = 1; id < allowed.size(); ++id) {
        std::int32_t state = automaton.start();
        for (const char c : text + trie->bytes(static_cast<std::int64_t>(id)))
          if (state != GrammarAutomaton::kDead) state = automaton.next(state, static_cast<std::uint8_t>(c));
        EXPECT_EQ(allowed[id], state != GrammarAutomaton::kDead)
            << text << "|" << trie->bytes(static_cast<std::int64_t>(id));
        if (allowed[id]) open.push_back(static_cast<std::int64_t>(id));
      }
      EXPECT_EQ(allowed[0], mask.complete());
      if (mask.complete()) {
        EXPECT_NO_THROW(Ordered::parse(text)) << text;
      }
      if (open.empty()) break;
      const std::int64_t next = open[random() % open.size()];
      mask.take(next);
      text += trie->bytes(next);
    }
  }
}

TEST(GrammarMask, LetsATextBeLong) {
  const auto grammar = std::make_shared<const Grammar>(grammar_of_schema({{"type", "string"}, {"maxLength", 10'000}}));
  const auto trie = std::make_shared<const TokenTrie>(tokens());
  const std::vector<std::string> all = tokens();
  const auto id = [&](const char* text) { return std::ranges::find(all, text) - all.begin(); };
  GrammarMask mask(grammar, trie, {0});
  mask.take(id("\""));
  for (int i = 0; i < 6000; ++i) {
    ASSERT_TRUE(mask.allowed()[static_cast<std::size_t>(id("a"))]) << i;
    mask.take(id("a"));
  }
  EXPECT_TRUE(mask.allowed()[static_cast<std::size_t>(id("\""))]);
}

TEST(GrammarMask, EndsATextOnlyWhereItMayEnd) {
  const auto grammar = std::make_shared<const Grammar>(grammar_of_schema({{"type", "string"}}));
  const auto trie = std::make_shared<const TokenTrie>(std::vector<std::string>{"\"", "</s>"});
  GrammarMask mask(grammar, trie, {1});
  mask.take(0);
  EXPECT_FALSE(mask.allowed()[1]);
  mask.take(0);
  EXPECT_TRUE(mask.allowed()[1]);
}

TEST(GrammarAutomaton, ForgetsAndGoesOn) {
  const Grammar grammar = grammar_of_schema(Ordered::parse(R"({"type": "array"})"));
  GrammarAutomaton automaton(grammar);
  std::int32_t state = automaton.start();
  for (const char c : std::string("[1, [\"a")) {
    state = automaton.next(state, static_cast<std::uint8_t>(c));
    state = automaton.forget_all_but(state);
    EXPECT_LE(automaton.size(), 2);
    EXPECT_LT(automaton.held(), 200);
  }
  for (const char c : std::string("\"]]")) state = automaton.next(state, static_cast<std::uint8_t>(c));
  EXPECT_TRUE(automaton.accepts(state));
}

TEST(GrammarAutomaton, GivesUpWhereWhatMayFollowDoublesWithEachByte) {
  const Ordered twice = Ordered::parse(R"({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "array", "items":
    {"$ref": "#/$defs/a"}}, {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}]}}})");
  const Grammar grammar = grammar_of_schema(twice);
  GrammarAutomaton automaton(grammar);
  std::int32_t state = automaton.start();
  const auto read = [&] {
    for (int i = 0; i < 64; ++i) state = automaton.next(state, '[');
  };
  try {
    read();
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
  }
}

TEST(TokenTrie, TellsSpecialTokensFromTexts) {
  text::Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  vocabulary.tokens.emplace_back("<|end|>");
  vocabulary.specials = {{.content = "<|end|>", .id = 256}};
  const TokenTrie trie(text::Tokenizer(vocabulary), 300);
  EXPECT_EQ(trie.bytes(256), "\xFF<|end|>");
  EXPECT_EQ(trie.bytes(0xFF), "");  // which would look like the mark
  EXPECT_EQ(trie.spelled("<|end|>"), "\xFF<|end|>");
  EXPECT_EQ(trie.spelled("<|end"), "<|end");
  EXPECT_EQ(trie.bytes('a'), "a");
  EXPECT_EQ(trie.bytes(0xC3), "\xC3");
  EXPECT_EQ(trie.bytes(0x82), "\x82");  // the middle of a character
  EXPECT_EQ(trie.vocab(), 300);
  EXPECT_EQ(trie.tokens().size(), 256);
}

}  // namespace
}  // namespace megatron::serve
