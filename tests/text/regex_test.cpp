#include "megatron/text/regex/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/text/split/pretokenize.h"

namespace megatron::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Regex, FindsTheSameByKindsOfCharactersAsByCodePoints) {
  std::mt19937 random(7);
  std::vector<std::string> texts(1);
  for (std::uint32_t c = 0; c < 0x110000; c += c < 0x3100 ? 1 : 37)
    if (c < 0xD800 || c >= 0xE000) append_utf8(texts[0] += random() % 3 == 0 ? "a" : random() % 5 == 0 ? "\n" : "", c);
  const std::vector<std::uint32_t> few = {'a',  'K',  's', 'z',  '-',   '{',    ' ',
                                          '\n', '\r', '7', 0xE9, 0x17F, 0x212A, 0x1D7D8};
  for (int i = 0; i < 300; ++i) {
    texts.emplace_back();
    for (std::size_t n = random() % 30; n > 0; --n) append_utf8(texts.back(), few[random() % few.size()]);
  }
  const auto spans = [](const Regex& regex, const std::string& text) {
    std::vector<std::pair<std::size_t, std::size_t>> found;
    Regex::Matcher matcher;
    matcher.for_each(regex, text, [&](std::size_t b, std::size_t e) { found.emplace_back(b, e); });
    return found;
  };
  for (const std::string pattern :
       {R"((?i:'s|k[s-]z)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+)",
        R"(\b\w+\b|[^\w\s]+)", R"(^.|.$|\A\S|\s\z)", R"((?i)s+|(?-i:k)a|[^k])", R"((?<=a)[\x{E9}\-{]|{|\x4B)",
        R"((?:\d{2}|[a-z-]){2,3}|a{1,2,3}|(?<!a)\p{Lu})", R"([^\x{0}-\x{10FFFF}]|z*)"}) {
    const Regex by_kind(pattern, "here"),
        by_code_point(pattern + R"(|(?!)\p{Han})", "here");  // which a script asks for
    for (const std::string& text : texts)
      ASSERT_EQ(spans(by_kind, text), spans(by_code_point, text)) << pattern << "\n" << text.substr(0, 200);
  }
}

TEST(Regex, StopsWhereAnExpressionNeedsTooManySteps) {
  const Regex regex("(a+)+(b|cd)", "here");
  Regex::Matcher matcher;
  EXPECT_THAT([&] { matcher.for_each(regex, std::string(40, 'a') + "!", [](std::size_t, std::size_t) {}); },
              ThrowsMessage<ConfigError>(HasSubstr("here: an expression must match")));
}

/// An expression that is not compiled again says whose it is, and each of many in turn is itself.
TEST(Regex, OfAnotherPlaceOrPatternIsAnother) {
  Regex::Matcher matcher;
  for (const char* const where : {"one", "another", "one"}) {
    const Regex regex("(a+)+(b|cd)", where);
    EXPECT_THAT([&] { matcher.for_each(regex, std::string(40, 'a') + "!", [](std::size_t, std::size_t) {}); },
                ThrowsMessage<ConfigError>(testing::StartsWith(std::string(where) + ": ")));
  }
  for (int i = 0; i < 60; ++i) {
    const std::string word(static_cast<std::size_t>(1 + i * 7 % 20), 'x');
    std::size_t size = 0;
    matcher.for_each(Regex(word, "here"), std::string(25, 'x'), [&](std::size_t a, std::size_t b) { size = b - a; });
    EXPECT_EQ(size, word.size());
  }
}

TEST(Regex, RefusesMoreClassesThanItCanWriteOut) {
  for (const std::string part : {"\\b", "\\w", "[\\w\\W]"}) {
    std::string pattern;
    while (pattern.size() < 16000) pattern += part;
    EXPECT_THAT([&] { Regex(pattern, "here"); }, ThrowsMessage<ConfigError>(HasSubstr("at most 2^20 bytes"))) << part;
  }
}

std::vector<std::string> matches_of(const char* pattern, const std::string& text) {
  Regex::Matcher matcher;
  std::vector<std::string> found;
  matcher.for_each(Regex(pattern, "here"), text,
                   [&](std::size_t begin, std::size_t end) { found.push_back(text.substr(begin, end - begin)); });
  return found;
}

/// What Oniguruma finds, through Hugging Face tokenizers' pre-tokenizer Split.
TEST(Regex, ReadsRepetitionsAndFlagsAsRubyDoes) {
  EXPECT_THAT(matches_of("\\d{1,3}+", "1234567"), ElementsAre("1234567"));
  EXPECT_THAT(matches_of("\\d{3}?x", "12345x"), ElementsAre("345x"));
  EXPECT_THAT(matches_of("(ab){1,2}+c", "ababababc"), ElementsAre("ababababc"));
  EXPECT_THAT(matches_of("\u00e9{1,2}+", "\u00e9\u00e9\u00e9"), ElementsAre("\u00e9\u00e9\u00e9"));
  EXPECT_THAT(matches_of("a(?i)b|c", "aB aC C c b"), ElementsAre("aB", "aC"));
  EXPECT_THAT(matches_of("(?:x(?i)y|z)w", "xYw xZW zw xYW"), ElementsAre("xYw"));
  EXPECT_THAT(matches_of("\\d{1,3}?a", "123a"), ElementsAre("123a"));
  EXPECT_THAT([] { Regex("a|{1,3}+", "here"); }, ThrowsMessage<ConfigError>(HasSubstr("must follow what it repeats")));
}

TEST(Regex, StopsWhereManyPlacesNeedManySteps) {
  const std::string text(200000, 'a');
  // Steps that are counted, bytes that are run over without counting, and such between matches.
  for (const char* pattern : {"(?=a)a*?[xy]", "(?>[ab]+)[xy]", "(?=a*?(x|$))a"}) {
    const Regex regex(pattern, "here");
    Regex::Matcher matcher;
    EXPECT_THAT([&] { matcher.for_each(regex, text, [](std::size_t, std::size_t) {}); },
                ThrowsMessage<ConfigError>(HasSubstr("here: an expression must match")))
        << pattern;
  }
}

TEST(Regex, FindsTheSameHoweverFarItLooksAhead) {
  const std::string pattern = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  const Regex by_kind(pattern, "here"), by_code_point(pattern + R"(|(?!)\p{Han})", "here");
  std::mt19937 random(5);
  Regex::Matcher matcher;
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int run = 0; run < 12; ++run) {
      static const std::vector<std::string> parts = {"a", " ", "7", ".", "\u65e5", "\u0301", "\n", "'s"};
      const std::string& part = parts[random() % parts.size()];
      for (std::size_t n = random() % 3 == 0 ? random() % 3000 : random() % 3; n > 0; --n) text += part;
    }
    std::vector<std::pair<std::size_t, std::size_t>> expected;
    for_each_piece(text, [&](const char* at, std::size_t size) {
      expected.emplace_back(at - text.data(), static_cast<std::size_t>(at - text.data()) + size);
    });
    for (const Regex* regex : {&by_kind, &by_code_point}) {
      std::vector<std::pair<std::size_t, std::size_t>> got;
      matcher.for_each(*regex, text, [&](std::size_t begin, std::size_t end) { got.emplace_back(begin, end); });
      ASSERT_EQ(got, expected) << round;
    }
  }
  const std::string far = std::string(5000, 'b') + "xy" + std::string(5000, 'b') + "x";
  EXPECT_THAT(matches_of("x.", far), ElementsAre("xy"));
  EXPECT_THAT(matches_of("x\\z", far), ElementsAre("x"));
  EXPECT_THAT(matches_of("\\z", far), ElementsAre(""));
  std::string wide = "b";  // no try begins within a character
  for (int i = 0; i < 5000; ++i) wide += "\u65e5";
  EXPECT_THAT(matches_of(R"([\x{80}-\x{BF}]|(?!)\p{Han})", wide), ElementsAre());
}

TEST(Regex, KnowsTheClassesOfUnicode16) {
  Regex::Matcher matcher;
  const auto count = [&](const char* pattern, const std::string& text) {
    std::size_t matches = 0;
    matcher.for_each(Regex(pattern, "here"), text, [&](std::size_t, std::size_t) { ++matches; });
    return matches;
  };
  EXPECT_EQ(count("\\p{L}", "\U00010d4a\u1c89x1"), 3u);  // two letters of Unicode 16
  EXPECT_EQ(count("\\s", "\u180e\u00a0 \u3000x"), 3u);   // U+180E is none
  EXPECT_EQ(count("[^\\s\\p{L}]", "a1 .\u0301"), 3u);
  EXPECT_EQ(count("\\bx\\b", "x xx \u00e9x x"), 2u);
  EXPECT_EQ(count("\\w", "\u00b2\u00bd\u00aa\u2167\u200d"), 4u);  // as Oniguruma, in sets and outside
  EXPECT_EQ(count("[\\w]", "\u00b2\u00bd\u00aa\u2167\u200d"), 2u);
  EXPECT_EQ(count("[^\\w\\s]", "\u00b2\u00bd\u00aa\u2167\u200d "), 3u);
}

}  // namespace
}  // namespace megatron::text
