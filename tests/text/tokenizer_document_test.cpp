#include "megatron/text/files/hugging_face/tokenizer_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/text/files/tokenizer_files.h"

namespace megatron::text {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string file_of(const std::string& vocab, const std::string& merges) {
  return R"({"added_tokens": [], "decoder": {"type": "ByteLevel"}, "pre_tokenizer": {"type": "ByteLevel", )"
         R"("add_prefix_space": false, "use_regex": true}, "model": {"type": "BPE", "vocab": )" +
         vocab + R"(, "merges": )" + merges + "}}";
}

TEST(TokenizerDocument, TakesItsListsOutOfTheValueOrLeavesThemInIt) {
  const auto listed = read_tokenizer_document(file_of(R"({"b": 1, "a": 0, "ab": 2})", R"(["a b"])"), "FILE");
  EXPECT_TRUE(listed.has_tokens && listed.has_merges);
  EXPECT_EQ(listed.root["model"]["vocab"], nlohmann::json::object());
  EXPECT_EQ(listed.root["pre_tokenizer"]["use_regex"], true);
  ASSERT_EQ(listed.tokens.size(), 3U);
  EXPECT_EQ(listed.tokens[0].spelling, "b");
  EXPECT_EQ(listed.tokens[0].id, 1);
  EXPECT_EQ(listed.merges[0], (std::pair<std::string_view, std::string_view>("a", "b")));
  for (const char* vocab : {R"({"a": 0.5})", R"({"a": -1})", R"({"a": 4294967296})", R"({"a": "0"})", "[1]"})
    EXPECT_FALSE(read_tokenizer_document(file_of(vocab, "[]"), "FILE").has_tokens) << vocab;
  for (const char* merges : {R"(["ab"])", R"(["a b c"])", R"([["a"]])", R"([["a", 1]])", "{}"})
    EXPECT_FALSE(read_tokenizer_document(file_of("{}", merges), "FILE").has_merges) << merges;
}

TEST(TokenizerDocument, OfEitherWayIsTheSameTokenizer) {
  const std::string vocab = R"({"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "\u0120a": 5})";
  const auto listed = parse_tokenizer_json(file_of(vocab, R"(["a b", "Ġ a", "Ġ ab"])"), "FILE");
  const auto pairs = parse_tokenizer_json(file_of(vocab, R"([["a", "b"], ["Ġ", "a"], ["Ġ", "ab"]])"), "FILE");
  EXPECT_EQ(listed.tokens, pairs.tokens);
  EXPECT_EQ(listed.merges, pairs.merges);
  EXPECT_EQ(listed.tokens, (std::vector<std::string>{"a", "b", "ab", " ", " ab", " a"}));
  EXPECT_EQ(listed.merges, (std::vector<std::pair<std::int32_t, std::int32_t>>{{0, 1}, {3, 0}, {3, 2}}));
}

TEST(TokenizerDocument, SaysWhatIsWrongAsEveryJsonDoes) {
  const auto reading = [](const std::string& vocab, const std::string& merges) {
    return [=] { parse_tokenizer_json(file_of(vocab, merges), "FILE"); };
  };
  EXPECT_THAT(reading(R"({"a": 0, "a": 1})", "[]"),
              ThrowsMessage<ConfigError>(HasSubstr("the key \"a\" twice in one object")));
  EXPECT_THAT(reading(R"({"a": 0})", R"(["a b"])"),
              ThrowsMessage<ConfigError>(HasSubstr("merge 0: unknown token \"b\"")));
  EXPECT_THAT(reading(R"({"a": 0, "b": 1})", R"([["a", "b"]])"),
              ThrowsMessage<ConfigError>(HasSubstr("merge 0: no token \"ab\"")));
  EXPECT_THAT(reading(R"({"a": 0, "b": 1, "ab": 2})", R"(["a b", "a b c"])"),
              ThrowsMessage<ConfigError>(HasSubstr("merge 1: \"a b c\"")));
  EXPECT_THAT(reading(R"({"a": 9000})", "[]"), ThrowsMessage<ConfigError>(HasSubstr("ids must be 0 … ")));
  EXPECT_THAT(reading(R"({"a": -1})", "[]"), ThrowsMessage<ConfigError>(HasSubstr("id -1 for \"a\"")));
  EXPECT_THAT([] { read_tokenizer_document(R"({"model": {}, "model": {}})", "FILE"); },
              ThrowsMessage<ConfigError>(HasSubstr("the key \"model\" twice in one object")));
  std::string deep = "0";
  for (int level = 0; level < 65; ++level) deep = "[" + deep + "]";
  EXPECT_THAT([&] { read_tokenizer_document(deep, "FILE"); },
              ThrowsMessage<ConfigError>(HasSubstr("nested deeper than 64 levels")));
  EXPECT_EQ(read_tokenizer_document(deep.substr(1, deep.size() - 2), "FILE").root.size(), 1U);
}

}  // namespace
}  // namespace megatron::text
