#include "megatron/text/split/pretokenize.h"

#include <gtest/gtest.h>

#include <array>

#include "megatron/text/characters/unicode_classes.h"
#include "tests/text/support.h"

namespace megatron::text {
namespace {

std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> pieces;
  for_each_piece(text, [&](const char* p, std::size_t size) { pieces.emplace_back(p, size); });
  return pieces;
}

/// The expression read as it stands: at each place the first alternative that matches, taken a character at a time.
class PlainSplitter {
 public:
  explicit PlainSplitter(std::string_view text) {
    const char* end = text.data() + text.size();
    for (const char* p = text.data(); p < end;) {
      const DecodedChar c = decode_utf8(p, end);
      const int length = std::max(c.length, 1);
      chars_.push_back({std::string(p, static_cast<std::size_t>(length)),
                        c.length == 0 ? CharClass::Other : UnicodeClasses::instance().of(c.code_point)});
      p += length;
    }
  }

  std::vector<std::string> split() {
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < chars_.size();) {
      const std::size_t end = match(at);
      pieces.emplace_back();
      for (; at < end; ++at) pieces.back() += chars_[at].bytes;
    }
    return pieces;
  }

 private:
  struct Char {
    std::string bytes;
    CharClass cls;
  };

  bool is(std::size_t at, const char* bytes) const { return at < chars_.size() && chars_[at].bytes == bytes; }
  std::size_t run_end(std::size_t at, CharClass cls) const {
    while (at < chars_.size() && chars_[at].cls == cls) ++at;
    return at;
  }
  std::size_t match(std::size_t at) const {
    if (is(at, "'")) {
      for (const char* one : {"s", "t", "m", "d"})
        if (is(at + 1, one)) return at + 2;
      for (const auto& [a, b] : {std::pair{"r", "e"}, {"v", "e"}, {"l", "l"}})
        if (is(at + 1, a) && is(at + 2, b)) return at + 3;
    }
    for (const CharClass cls : {CharClass::Letter, CharClass::Number, CharClass::Other}) {
      const std::size_t first = is(at, " ") ? at + 1 : at;
      if (const std::size_t end = run_end(first, cls); end > first) return end;
    }
    const std::size_t end = run_end(at, CharClass::Space);
    return end == chars_.size() || end == at + 1 ? end : end - 1;
  }

  std::vector<Char> chars_;
};

TEST(Pretokenize, CutsTextAsHuggingFaceDoes) {
  for (const GoldenCase& golden : golden_cases()) EXPECT_EQ(pieces_of(golden.text), golden.pieces) << golden.text;
}

TEST(Pretokenize, CutsAroundEveryDigitWhereAskedAsIfTheTextEndedThere) {
  std::mt19937 random(11);
  for (int i = 0; i < 4000; ++i) {
    const std::string text = random_text(random, 60);
    std::vector<std::string> expected, pieces;
    std::string between;
    const auto flush = [&] {
      for (std::string& piece : PlainSplitter(between).split()) expected.push_back(std::move(piece));
      between.clear();
    };
    const char* end = text.data() + text.size();
    for (const char* p = text.data(); p < end;) {
      const DecodedChar c = decode_utf8(p, end);
      const std::string bytes(p, static_cast<std::size_t>(std::max(c.length, 1)));
      p += bytes.size();
      if (c.length == 0 || UnicodeClasses::instance().of(c.code_point) != CharClass::Number) {
        between += bytes;
        continue;
      }
      flush();
      expected.push_back(bytes);
    }
    flush();
    for_each_piece(text, true, [&](const char* p, std::size_t size) { pieces.emplace_back(p, size); });
    EXPECT_EQ(pieces, expected) << testing::PrintToString(text);
  }
}

TEST(Pretokenize, CutsRandomTextAsTheExpressionReads) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const std::string text = random_text(random, i % 10 == 0 ? 200 : 40);
    ASSERT_EQ(pieces_of(text), PlainSplitter(text).split()) << i << ": " << testing::PrintToString(text);
  }
}

TEST(Pretokenize, CutsRulesThatCrossABlockAtEveryOffset) {
  for (const std::string tail :
       {"'s and", "x're b", "  y", "\u3000\u3000y", "\u2003y", "😀😀 y", " \n z", "ж'll z", "\xf0\x9f"})
    for (std::size_t pad = 0; pad < 200; ++pad) {
      const std::string text = std::string(pad, 'x') + tail;
      ASSERT_EQ(pieces_of(text), PlainSplitter(text).split()) << pad << " " << tail;
    }
}

TEST(Pretokenize, CutsRandomBytesWithoutLosingAny) {
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 300, '\0');
    for (char& c : text) c = static_cast<char>(random());
    ASSERT_EQ(pieces_of(text), PlainSplitter(text).split()) << testing::PrintToString(text);
  }
}

TEST(UnicodeClasses, CountsWhatUnicode16Assigns) {
  std::array<int, 4> counts{};
  for (std::uint32_t c = 0; c < 0x110000; ++c) ++counts[static_cast<std::size_t>(UnicodeClasses::instance().of(c))];
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::Letter)], 141028);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::Number)], 1911);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::Space)], 25);
}

TEST(DecodeUtf8, TakesEveryCodePointAndNoOverlongSurrogateOrCutForm) {
  const auto decode = [](const std::string& s) { return decode_utf8(s.data(), s.data() + s.size()); };
  EXPECT_EQ(decode("\xc2\x80").code_point, 0x80u);
  EXPECT_EQ(decode("\xed\x9f\xbf").code_point, 0xD7FFu);
  EXPECT_EQ(decode("\xf4\x8f\xbf\xbf").code_point, 0x10FFFFu);
  for (const std::string bad :
       {"\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xe2\x82", "\x80", "\xff"})
    EXPECT_EQ(decode(bad).length, 0) << testing::PrintToString(bad);
}

}  // namespace
}  // namespace megatron::text
