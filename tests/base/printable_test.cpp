#include "megatron/base/text/printable.h"

#include <gtest/gtest.h>

#include "megatron/base/log.h"
#include "megatron/base/text/utf8.h"

namespace megatron {
namespace {

TEST(Printable, EscapesWhatATerminalObeysAndKeepsWhatIsRead) {
  EXPECT_EQ(printable("decoder.layers.0.weight"), "decoder.layers.0.weight");
  EXPECT_EQ(printable("Größe 日本 🙂 \"a\\b\""), "Größe 日本 🙂 \"a\\b\"");
  EXPECT_EQ(printable("\x1b[2J"), "\\x1b[2J");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\0b");
  EXPECT_EQ(printable("a\r\n\tb\x7f\a"), "a\\r\\n\\tb\\x7f\\x07");
  EXPECT_EQ(printable("\xff\xc3(\xed\xa0\x80"), "\\xff\\xc3(\\xed\\xa0\\x80");
  EXPECT_EQ(printable("a\u009bb"), "a\\u{9b}b") << "a control sequence in one character";
  EXPECT_EQ(printable("gnp.\u202egpj"), "gnp.\\u{202e}gpj");
  EXPECT_EQ(printable("a\u2028b\u200bc\ufeff"), "a\\u{2028}b\\u{200b}c\\u{feff}");
}

TEST(Printable, OfEveryByteIsUtf8WithoutControls) {
  std::string all;
  for (int round = 0; round < 2; ++round)
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(round == 0 ? byte : 255 - byte);
  const std::string shown = printable(all);
  EXPECT_TRUE(valid_utf8(shown));
  for (const char c : shown) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F);
  EXPECT_EQ(printable(shown), shown);
}

TEST(Printable, QuotesAreCut) {
  EXPECT_EQ(in_quotes("\x1b"), "\"\\x1b\"");
  EXPECT_EQ(in_quotes(std::string(61, 'a')), "\"" + std::string(60, 'a') + "…\"");
}

TEST(Printable, LinesOfAMessageStayLines) {
  EXPECT_EQ(printable_lines("rule\n  got:  a\tb\x1b[2J"), "rule\n  got:  a\tb\\x1b[2J");
  char buffer[64] = {};
  std::FILE* const stream = fmemopen(buffer, sizeof buffer, "w");
  write_line(stream, "a\x1b");
  Logger("rank 1", stream).info("b\x1b\nc");
  std::fclose(stream);
  EXPECT_STREQ(buffer, "a\\x1b\nrank 1: b\\x1b\nc\n");
}

}  // namespace
}  // namespace megatron
