#include "megatron/base/text/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace megatron {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// What is wrong with `text`, "" for nothing.
std::string fault(std::string_view text, std::size_t max_depth = kMaxJsonDepth) {
  try {
    parse_json(text, max_depth);
    return "";
  } catch (const JsonError& error) {
    return error.what();
  }
}

TEST(Json, RefusesAKeyThatAnObjectHasAgain) {
  EXPECT_EQ(fault(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]})"), "");
  EXPECT_EQ(fault(R"({"a": 1, "b": 2, "b": 3, "a": 4})"), "the key \"b\" twice in one object");
  EXPECT_EQ(fault(R"([{"x": [{}, {"": 1, "\u0061": 2, "": 3}]}])"), "the key \"\" twice in one object");
  EXPECT_EQ(fault(R"({"a": {"b": {}}, "\u0061": 2})"), "the key \"a\" twice in one object");
  const auto last = parse_json(R"({"a": {"b": 1}, "c": 2, "\u0061": {"b": 3, "b": [4]}})", 3, RepeatedKeys::LastCounts);
  EXPECT_EQ(last.dump(), R"({"a":{"b":[4]},"c":2})");
  EXPECT_THROW(parse_json(R"({"a": 1, "a": [[2]]})", 2, RepeatedKeys::LastCounts), JsonError);
}

TEST(Json, CountsObjectsAndArraysThatAreOpenTogether) {
  EXPECT_EQ(fault(R"([[1], {"a": []}, [[2], [3]]])", 3), "");
  EXPECT_EQ(fault(R"([[1], {"a": []}, [[2], [3]]])", 2), "values nested deeper than 2 levels");
  EXPECT_EQ(fault(std::string(1'000'000, '[')), "values nested deeper than 64 levels");
}

TEST(Json, SaysWhereATextCeasesToBeJson) {
  for (const auto& [text, byte] :
       {std::pair{"", 0}, {"{", 1}, {"{\"a\": 1, \"a", 11}, {"[1, }", 4}, {"\xff", 0}, {"1 2", 2}, {"[1e999]", 5}}) {
    try {
      parse_json(text);
      ADD_FAILURE() << text;
    } catch (const JsonError& error) {
      EXPECT_EQ(error.byte, static_cast<std::size_t>(byte)) << text << ": " << error.what();
      EXPECT_EQ(error.what(), "something that is not JSON at byte " + std::to_string(byte));
      EXPECT_NE(error.detail, "");
    }
    EXPECT_EQ(try_parse_json(text), std::nullopt);
  }
  EXPECT_EQ(try_parse_json("[null]"), json::array({nullptr}));
}

/// Any value, up to `depth` levels.
json random_value(std::mt19937_64& random, int depth) {
  switch (random() % (depth > 0 ? 8 : 6)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 1;
    case 2:
      return random();
    case 3:
      return -static_cast<std::int64_t>(random() >> 1);
    case 4:
      return static_cast<double>(random()) / 1e7;
    case 5:
      return std::string(random() % 5, static_cast<char>('"' + random() % 60)) + "\u00e9\n";
    case 6: {
      json array = json::array();
      for (std::uint64_t i = random() % 5; i > 0; --i) array.push_back(random_value(random, depth - 1));
      return array;
    }
    default: {
      json object = json::object();
      for (std::uint64_t i = random() % 5; i > 0; --i)
        object[std::to_string(random() % 99)] = random_value(random, depth - 1);
      return object;
    }
  }
}

TEST(Json, ReadsWhatItsLibraryReads) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_value(random, 5).dump();
    EXPECT_EQ(parse_json(text), json::parse(text)) << text;
    EXPECT_EQ(parse_json(text).dump(), text);
  }
}

// Were each object searched among those before it, this would not end before ctest's limit.
TEST(Json, TakesManyObjectsInOnePass) {
  std::string text = "[";
  for (int i = 0; i < 300'000; ++i) text += "{},";
  EXPECT_EQ(fault(text + R"({"a": 1}])"), "");
  EXPECT_EQ(fault(text + R"({"a": 1, "a": 1}])"), "the key \"a\" twice in one object");
}

}  // namespace
}  // namespace megatron
