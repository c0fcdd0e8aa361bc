#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/text/utf8.h"
#include "megatron/serve/api/api_error.h"
#include "megatron/serve/grammar/json_schema.h"

namespace megatron::serve {
namespace {

using Ordered = nlohmann::ordered_json;

/// The texts of a schema.
class Texts {
 public:
  explicit Texts(const Ordered& schema) : grammar_(grammar_of_schema(schema)), automaton_(grammar_) {}

  bool hold(const std::string& text) {
    std::int32_t state = automaton_.start();
    for (const char c : text) {
      state = automaton_.next(state, static_cast<std::uint8_t>(c));
      if (state == GrammarAutomaton::kDead) return false;
    }
    return automaton_.accepts(state);
  }

 private:
  Grammar grammar_;
  GrammarAutomaton automaton_;
};

bool is_of(const std::string& schema, const std::string& text) { return Texts(Ordered::parse(schema)).hold(text); }

/// A string of JSON.
std::string in_quotes(const std::string& text) { return Ordered(text).dump(); }

TEST(SchemaBounds, AreKeptByEveryWholeNumber) {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> around(-130, 130);
  for (int round = 0; round < 60; ++round) {
    const int low = around(random), high = around(random), multiple = round % 3 == 0 ? 1 + std::abs(around(random)) : 1;
    Ordered schema = {{"type", "integer"}};
    const int open = round % 4;
    if (open != 1) schema[round % 2 == 0 ? "minimum" : "exclusiveMinimum"] = low;
    if (open != 2) schema[round % 5 < 3 ? "maximum" : "exclusiveMaximum"] = high;
    if (multiple > 1) schema["multipleOf"] = multiple;
    const auto allowed = [&](int i) {
      const auto beyond = [&](const char* name, int sign, bool equal) {
        return schema.contains(name) && (sign * i < sign * schema[name].get<int>() || (equal && i == schema[name]));
      };
      return !beyond("minimum", 1, false) && !beyond("exclusiveMinimum", 1, true) && !beyond("maximum", -1, false) &&
             !beyond("exclusiveMaximum", -1, true) && i % multiple == 0;
    };
    std::vector<int> left;
    for (int i = -1300; i <= 1300; ++i)
      if (allowed(i)) left.push_back(i);
    if (left.empty()) {
      EXPECT_THROW(grammar_of_schema(schema), ApiError) << schema;
      continue;
    }
    Texts grammar(schema);
    for (int i = -1300; i <= 1300; ++i) EXPECT_EQ(grammar.hold(std::to_string(i)), allowed(i)) << schema << i;
  }
  const std::string most = R"({"type": "integer", "minimum": 9223372036854775806, "maximum": 9223372036854775807})";
  EXPECT_TRUE(is_of(most, "9223372036854775806"));
  EXPECT_FALSE(is_of(most, "9223372036854775808"));
  EXPECT_FALSE(is_of(most, "922337203685477580"));
  const std::string two = R"({"minimum": 9223372036854775807, "exclusiveMinimum": 9223372036854775700})";
  EXPECT_TRUE(is_of(two, "9223372036854775807"));
  EXPECT_FALSE(is_of(two, "9223372036854775701"));
  for (const std::string more :
       {"", R"(, "minimum": -5)", R"(, "maximum": 7000)", R"(, "minimum": 0, "maximum": 9999)"}) {
    Texts thousands(Ordered::parse(R"({"type": "integer", "multipleOf": 1000)" + more + "}"));
    for (const char* good : {"0", "1000", "5000"}) EXPECT_TRUE(thousands.hold(good)) << more << good;
    for (const char* bad : {"1", "999", "1500", "01000", "-1"}) EXPECT_FALSE(thousands.hold(bad)) << more << bad;
    EXPECT_EQ(thousands.hold("123456789000"), more.find("maximum") == std::string::npos);
    EXPECT_EQ(thousands.hold("-2000"), more.find("minimum") == std::string::npos);
  }
  EXPECT_TRUE(is_of(R"({"type": "integer", "minimum": 0.5, "maximum": 1.5})", "1"));
  EXPECT_FALSE(is_of(R"({"type": "integer", "minimum": 0.5, "maximum": 1.5})", "0"));
  EXPECT_FALSE(is_of(R"({"type": "integer", "minimum": 1})", "01"));
}

TEST(SchemaBounds, AreKeptByEveryFraction) {
  std::mt19937 random(4);
  std::uniform_int_distribution<int> around(-2500, 2500);
  for (int round = 0; round < 100; ++round) {
    const int low = around(random), high = round % 7 == 0 ? low : around(random);
    Ordered schema = {{"type", "number"}};
    const bool low_out = round % 2 == 1, high_out = round % 3 == 1;
    if (round % 4 != 1) schema[low_out ? "exclusiveMinimum" : "minimum"] = low / 1000.0;
    if (round % 4 != 2) schema[high_out ? "exclusiveMaximum" : "maximum"] = high / 1000.0;
    const auto allowed = [&](int i) {  // thousandths
      if (round % 4 != 1 && (low_out ? i <= low : i < low)) return false;
      return round % 4 == 2 || (high_out ? i < high : i <= high);
    };
    const bool none = round % 4 != 1 && round % 4 != 2 && (low > high || (low == high && (low_out || high_out)));
    if (none) {
      EXPECT_THROW(grammar_of_schema(schema), ApiError) << schema;
      continue;
    }
    Texts grammar(schema);
    for (int i = -2600; i <= 2600; ++i) {
      char text[32];
      std::snprintf(text, sizeof text, "%.3f", i / 1000.0);
      EXPECT_EQ(grammar.hold(text), allowed(i)) << schema << text;
      if (i % 1000 == 0 && i != 0) {
        EXPECT_EQ(grammar.hold(std::to_string(i / 1000)), allowed(i)) << schema << text;
      }
    }
  }
  const std::string percent = R"({"minimum": 0, "maximum": 1, "multipleOf": 0.01})";
  for (const char* good : {"0", "1", "0.25", "1.00", "0.5"}) EXPECT_TRUE(is_of(percent, good)) << good;
  for (const char* bad : {"0.255", "1.01", "-0.5", "1e0", "2"}) EXPECT_FALSE(is_of(percent, bad)) << bad;
  EXPECT_TRUE(is_of(R"({"exclusiveMinimum": 0, "maximum": 1e-7})", "0.00000005"));
  EXPECT_FALSE(is_of(R"({"exclusiveMinimum": 0, "maximum": 1e-7})", "0.000001"));
  EXPECT_FALSE(is_of(R"({"exclusiveMinimum": 0, "maximum": 1e-7})", "0.0"));
}

TEST(SchemaPattern, IsFoundWhereTheStandardLibraryFindsIt) {
  const char* const patterns[] = {"ab",
                                  "^ab",
                                  "ab$",
                                  "^ab$",
                                  "^a*$",
                                  "^(a|b)*$",
                                  "^(ab|a)+$",
                                  "^a{2,3}$",
                                  "^(a{1,2}b){2}$",
                                  "a|^b$",
                                  "^(?:a?b?){2}$",
                                  "^[^a]+$",
                                  "^(a*)*$",
                                  "^(a|)*b$",
                                  "[a-c]{3}",
                                  "^\\w\\d?$",
                                  "^.\\.$",
                                  "^a+?b*?$",
                                  "^(^a|b)$",
                                  "(a$|b)",
                                  "^[\\da]-?$",
                                  "^$",
                                  "",
                                  "^\\x61b$",

                                  "^((a|b){2}){2}$",
                                  "^[a\\-c]+$",

                                  "^(a+b?)+$",
                                  "\"|\\\\"};
  const std::string letters = "ab1.-\"\\]";
  std::mt19937 random(5);
  std::uniform_int_distribution<std::size_t> which(0, letters.size() - 1), length(0, 5);
  for (const char* pattern : patterns) {
    const std::regex judge(pattern, std::regex::ECMAScript);
    Texts grammar({{"type", "string"}, {"pattern", pattern}});
    std::optional<Texts> short_ones;
    try {
      short_ones.emplace(Ordered{{"pattern", pattern}, {"minLength", 1}, {"maxLength", 3}});
    } catch (const ApiError&) {  // there are none
    }
    for (int round = 0; round < 400; ++round) {
      std::string text;
      for (std::size_t i = length(random); i > 0; --i)
        text += letters[round % 2 == 0 ? which(random) % 2 : which(random)];
      const bool found = std::regex_search(text, judge);
      EXPECT_EQ(grammar.hold(in_quotes(text)), found) << pattern << " and " << text;
      EXPECT_EQ(short_ones && short_ones->hold(in_quotes(text)), found && !text.empty() && text.size() <= 3)
          << pattern << " " << text;
    }
  }
}

TEST(SchemaPattern, IsOfCharactersAndNotOfBytes) {
  const std::string any = R"({"pattern": "^.$"})";
  for (const char* one : {"a", "ä", "€", "😀", "\"", "\\", "\t", "\x7f"}) EXPECT_TRUE(is_of(any, in_quotes(one))) << one;
  for (const char* other : {"", "\n", "ab", "ää"}) EXPECT_FALSE(is_of(any, in_quotes(other))) << other;
  const std::string some = R"({"pattern": "^[à-ŷ€\\u{1F600}-\\u{1F64F}]+$"})";
  for (const char* one : {"à", "ÿ", "Āŷ", "€", "😀", "🙏"}) EXPECT_TRUE(is_of(some, in_quotes(one))) << one;
  for (const char* other : {"Ã", "Ÿ", "₭", "🚀", "a"}) EXPECT_FALSE(is_of(some, in_quotes(other))) << other;
  EXPECT_TRUE(is_of(R"({"pattern": "^[\\x00-\\x1f]+$"})", R"("\u0001\n\u001f\t")"));
  EXPECT_FALSE(is_of(R"({"pattern": "^[\\x00-\\x1f]+$"})", "\"\x01\""));
  // Every character is in a set or in its complement, and in one alone.
  std::mt19937 random(6);
  std::uniform_int_distribution<std::uint32_t> any_character(0x20, 0x10FFFF);
  const auto escaped = [](std::uint32_t c) { return "\\u{" + Ordered(c).dump() + "}"; };
  for (int round = 0; round < 30; ++round) {
    std::uint32_t from = any_character(random) >> (round % 3 * 5), to = any_character(random) >> (round % 3 * 5);
    if (from > to) std::swap(from, to);
    const auto hex = [](std::uint32_t c) {
      char digits[16];
      std::snprintf(digits, sizeof digits, "\\u{%x}", c < 0xD800 || c > 0xDFFF ? c : 0xE000);
      return std::string(digits);
    };
    const std::string range = hex(from) + "-" + hex(to);
    Texts in({{"type", "string"}, {"pattern", "^[" + range + "]$"}});
    Texts out({{"type", "string"}, {"pattern", "^[^" + range + "]$"}});
    for (int i = 0; i < 200; ++i) {
      const std::uint32_t c =
          i < 3 ? from + static_cast<std::uint32_t>(i) - 1 : any_character(random) >> (round % 3 * 5);
      if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) continue;
      std::string text;
      append_utf8(text, c);
      EXPECT_NE(in.hold(in_quotes(text)), out.hold(in_quotes(text))) << range << " " << escaped(c);
      if (c < 0xD800 && from < 0xD800 && to < 0xD800) {
        EXPECT_EQ(in.hold(in_quotes(text)), c >= from && c <= to) << range << " " << escaped(c);
      }
    }
  }
}

TEST(SchemaPattern, OfAFormatIsItsStrings) {
  const auto expect = [](const std::string& format, const std::vector<std::string>& good,
                         const std::vector<std::string>& bad) {
    Texts grammar({{"type", "string"}, {"format", format}});
    for (const std::string& text : good) EXPECT_TRUE(grammar.hold(in_quotes(text))) << text;
    for (const std::string& text : bad) EXPECT_FALSE(grammar.hold(in_quotes(text))) << text;
  };
  expect("date", {"2026-11-27", "2024-02-29", "2000-02-29"},
         {"2023-02-29", "1900-02-29", "0000-02-29", "2026-04-31", "2026-13-01"});
  expect("time", {"23:59:59Z", "00:00:00.25+05:30"}, {"24:00:00Z", "12:60:00Z", "12:00:00"});
  expect("date-time", {"2026-11-27T08:30:00Z"}, {"2026-11-27 08:30:00Z", "2026-11-27"});
  expect("duration", {"P1Y2M3DT4H5M6S", "PT5M", "P2W", "P1D"}, {"P", "PT", "P1YT", "1D", "P1W2D"});
  expect("email", {"a.b+c@example.org"}, {"a@b", "@example.org", "a b@example.org", ".a@example.org"});
  expect("hostname", {"example.org", "a-b"}, {"-a", "a..b", "a_b"});
  expect("ipv4", {"0.0.0.0", "255.249.199.9"}, {"256.0.0.0", "1.2.3", "01.2.3.4"});
  expect("ipv6", {"2001:db8:0:0:0:0:0:1"}, {"2001:db8", "g:0:0:0:0:0:0:0"});
  expect("uuid", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567e89b12d3a456426614174000"});
}

TEST(SchemaPattern, IsRefusedWhereItIsNoneOrKnowsMore) {
  for (const char* pattern : {"(a",
                              "a)",
                              "[a",
                              "*a",
                              "a**",
                              "a{2}{3}",
                              "a{3,2}",
                              "(?=a)",
                              "(?!a)",
                              "(?<=a)",
                              "(?i)a",
                              "(a)\\1",
                              "\\ba",
                              "\\p{L}",
                              "[z-a]",
                              "[\\d-z]",
                              "\\",
                              "\\u12",
                              "\\u{110000}",
                              "\\ud800",
                              "\\q",
                              "^*",
                              "(?<a",
                              "a{1001}",
                              "{2}a",
                              "^(?é)$",
                              "((a{100}){100}){100}",
                              "(((){1000}){1000}){1000}",
                              "\xff"}) {
    try {
      grammar_of_schema({{"type", "string"}, {"pattern", pattern}});
      ADD_FAILURE() << pattern;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      EXPECT_NE(std::string(error.what()).find("'pattern'"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(grammar_of_schema({{"pattern", std::string(1000, '(') + std::string(1000, ')')}}), ApiError);
  EXPECT_THROW(grammar_of_schema({{"pattern", "(abcdef)*"}, {"minLength", 5000}, {"maxLength", 10'000}}), ApiError);
  EXPECT_THROW(grammar_of_schema({{"pattern", "^a{3}$"}, {"maxLength", 2}}), ApiError);
  // Each place leads to thousands of others without a character.
  const std::string many = "^(?:(?:$|)(?:" + std::string(3800, '|') + ")(?:a|b))*$";
  const Ordered all = {{"anyOf", Ordered(400, Ordered{{"pattern", many}, {"maxLength", 10'000}})}};
  EXPECT_THROW(grammar_of_schema(all), ApiError);
  for (const char* schema : {R"({"pattern": 1})", R"({"format": "regex"})", R"({"pattern": "a", "format": "date"})",
                             R"({"type": "integer", "minimum": "1"})", R"({"type": "integer", "multipleOf": 0})",
                             R"({"type": "number", "multipleOf": 0.5})", R"({"type": "integer", "multipleOf": 1e9})",
                             R"({"type": "number", "minimum": 1e308})", R"({"minimum": 100000000000000000001})",
                             R"({"type": "integer", "minimum": 3, "maximum": 2})"})
    EXPECT_THROW(grammar_of_schema(Ordered::parse(schema)), ApiError) << schema;
}

TEST(SchemaBounds, OfATupleAreAnElementEach) {
  const std::string pair = R"({"prefixItems": [{"type": "integer"}, {"type": "null"}], "items": false, "minItems": 2})";
  EXPECT_TRUE(is_of(pair, "[1, null]"));
  for (const char* bad : {"[]", "[1]", "[1,null,2]", "[null,1]", "[1,null"}) EXPECT_FALSE(is_of(pair, bad)) << bad;
  const std::string more = R"({"prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "maxItems": 3})";
  for (const char* good : {"[]", "[1]", "[1, null]", "[1,null,null]"}) EXPECT_TRUE(is_of(more, good)) << good;
  for (const char* bad : {"[null]", "[1,1]", "[1,null,null,null]", "[,1]"}) EXPECT_FALSE(is_of(more, bad)) << bad;
  EXPECT_TRUE(is_of(R"({"prefixItems": [{"type": "integer"}]})", "[1, \"a\"]"));
  EXPECT_TRUE(is_of(R"({"type": "array", "items": false})", "[]"));
  EXPECT_FALSE(is_of(R"({"type": "array", "items": false})", "[1]"));
}

}  // namespace
}  // namespace megatron::serve
