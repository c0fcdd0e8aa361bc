#include "megatron/base/json_faults.h"

#include <gtest/gtest.h>

#include <string>

namespace megatron {
namespace {

TEST(JsonFaults, FindsTheFirstKeyThatAnObjectHasAgain) {
  EXPECT_EQ(json_faults(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]})", 9).key_twice, std::nullopt);
  EXPECT_EQ(json_faults(R"({"a": 1, "b": 2, "b": 3, "a": 4})", 9).key_twice, "b");
  EXPECT_EQ(json_faults(R"([{"x": [{}, {"": 1, "\u0061": 2, "": 3}]}])", 9).key_twice, "");
  EXPECT_EQ(json_faults(R"({"a": {"b": {}}, "\u0061": 2})", 9).key_twice, "a");
}

TEST(JsonFaults, CountsObjectsAndArraysThatAreOpenTogether) {
  EXPECT_FALSE(json_faults(R"([[1], {"a": []}, [[2], [3]]])", 3).too_deep);
  EXPECT_TRUE(json_faults(R"([[1], {"a": []}, [[2], [3]]])", 2).too_deep);
  EXPECT_TRUE(json_faults(std::string(1'000'000, '['), 16).too_deep);
}

TEST(JsonFaults, LeavesWhatIsNotJsonToItsParser) {
  for (const char* text : {"", "{", "{\"a\": 1, \"a", "[1, }", "\xff"}) {
    const JsonFaults faults = json_faults(text, 9);
    EXPECT_FALSE(faults.key_twice || faults.too_deep) << text;
  }
}

// Were each object searched among those before it, this would not end before ctest's limit.
TEST(JsonFaults, TakesManyObjectsInOnePass) {
  std::string text = "[";
  for (int i = 0; i < 300'000; ++i) text += "{},";
  EXPECT_FALSE(json_faults(text + R"({"a": 1}])", 9).key_twice);
  EXPECT_EQ(json_faults(text + R"({"a": 1, "a": 1}])", 9).key_twice, "a");
}

}  // namespace
}  // namespace megatron
