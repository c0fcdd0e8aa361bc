#include "megatron/corpus/records.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/corpus/support.h"

namespace megatron::corpus {
namespace {

std::string value_of(const std::string& line, const std::string& key) {
  const auto member = find_member(line, key);
  return member ? std::string(member->value) : "none";
}

TEST(Member, StandsAsItIsWritten) {
  const std::string line = R"( { "a" : 1.50 , "text":"x\"y}", "b":[1,{"text":"inner"}], "c": {"text": 2} , "d":null})";
  EXPECT_EQ(value_of(line, "a"), "1.50");
  EXPECT_EQ(value_of(line, "text"), R"("x\"y}")");
  EXPECT_EQ(value_of(line, "b"), R"([1,{"text":"inner"}])");
  EXPECT_EQ(value_of(line, "c"), R"({"text": 2})");
  EXPECT_EQ(value_of(line, "d"), "null");
  EXPECT_EQ(value_of(line, "e"), "none");
}

TEST(Member, IsTheLastOfItsNameHoweverThatIsWritten) {
  EXPECT_EQ(value_of(R"({"k": 1, "k": 2})", "k"), "2");
  EXPECT_EQ(value_of(R"({"t\u0065xt": 7})", "text"), "7");
  EXPECT_EQ(value_of(R"({"a\"b": 7})", "a\"b"), "7");
}

TEST(Member, IsNoneOfWhatIsNoObject) {
  for (const std::string line : {"", " ", "{", "{}", "[1]", "{\"k", "{\"k\"", "{\"k\":", "{\"k\": \"x", "{\"k\": [\"",
                                 "{\"k\\", "{\"k\": \"\\", "}{", "{1: 2}"})
    EXPECT_EQ(value_of(line, "k"), "none") << line;
}

TEST(Member, AgreesWithAParserOnRandomObjects) {
  std::mt19937 engine(1);
  for (int round = 0; round < 500; ++round) {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (unsigned i = 0; i < 1 + engine() % 6; ++i) {
      const std::string key = "k" + std::to_string(engine() % 8);
      switch (engine() % 5) {
        case 0:
          object[key] = "a\"\\b{}[],:\n" + std::to_string(engine());
          break;
        case 1:
          object[key] = {1, "x]", {{"k0", "deep"}}, nlohmann::ordered_json::array()};
          break;
        case 2:
          object[key] = {{"k0", {{"k1", "}"}}}};
          break;
        case 3:
          object[key] = static_cast<double>(engine()) / 7;
          break;
        default:
          object[key] = engine() % 2 == 0;
      }
    }
    const std::string line = object.dump(round % 3 == 0 ? 2 : -1);
    for (int i = 0; i < 8; ++i) {
      const std::string key = "k" + std::to_string(i), value = value_of(line, key);
      if (object.contains(key))
        EXPECT_EQ(nlohmann::ordered_json::parse(value), object[key]) << line;
      else
        EXPECT_EQ(value, "none");
    }
  }
}

TEST(Member, IsPutBeforeTheFirst) {
  EXPECT_EQ(with_member(R"( {"a": 1})", R"("r": 2)"), R"( {"r": 2, "a": 1})");
  EXPECT_EQ(with_member("{ }", R"("r": 2)"), R"({"r": 2 })");
}

TEST(JsonString, GivesBackWhatItWasMadeOf) {
  EXPECT_EQ(string_value(json_string("a\"\\\n\t\x01é漢")), "a\"\\\n\t\x01é漢");
  EXPECT_EQ(json_string("a\xFF"), "\"a\uFFFD\"");
  EXPECT_EQ(string_value("12"), std::nullopt);
  EXPECT_EQ(string_value("\""), std::nullopt);
  EXPECT_EQ(string_value(R"("\q")"), std::nullopt);
}

}  // namespace
}  // namespace megatron::corpus
