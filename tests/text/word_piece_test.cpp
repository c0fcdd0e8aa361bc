#include "megatron/text/word_piece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/text/bert_text.h"
#include "megatron/text/tokenizer.h"
#include "megatron/text/tokenizer_files.h"

namespace megatron::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kVocab =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\n##a\nhello\n,\n!\ncafe\n日\n##日\na\n##b\n";

Tokenizer small() { return Tokenizer(parse_vocab_txt(kVocab, "vocab.txt", {})); }

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> result;
  for_each_bert_word(text, [&](std::string_view word) { result.emplace_back(word); });
  return result;
}

TEST(BertText, CleansSpacesStripsAndLowers) {
  const auto only = [](const char* text, bool clean, bool chinese, bool strip, bool lower) {
    return bert_normalize(text, {clean, chinese, strip, lower});
  };
  EXPECT_EQ(only("a\tb\r\n\u00a0c\u200b\u00ad\x7f\ufffd\x01", true, false, false, false), "a b   c");
  EXPECT_EQ(only("x日本y\U0002a700", false, true, false, false), "x 日  本 y \U0002a700 ");
  EXPECT_EQ(only("Ünïé \u0301\u1e69 한", false, false, true, false), "Unie s \u1112\u1161\u11ab");
  EXPECT_EQ(only("ÄİΣΑΣ", false, false, false, true), "äi\u0307σασ");
  EXPECT_EQ(only("\xff\xc3(", false, false, false, false), "\ufffd\ufffd(");
}

TEST(BertText, PutsTheMarksThatStayIntoCanonicalOrder) {
  // U+1D16D (class 226) and U+1D165 (216) are no nonspacing marks.
  const auto strip = [](const char* text) { return bert_normalize(text, {false, false, true, false}); };
  EXPECT_EQ(strip("a\U0001d16d\U0001d165"), "a\U0001d165\U0001d16d");
  EXPECT_EQ(strip("a\U0001d16db\U0001d165"), "a\U0001d16db\U0001d165");
  EXPECT_EQ(strip("a\U0001d16d\u0301\U0001d165"), "a\U0001d165\U0001d16d");
}

TEST(BertText, CutsWordsAtSpaceAndAroundPunctuation) {
  EXPECT_THAT(words("it's  (x)…\u3000$3.1\n"), ElementsAre("it", "'", "s", "(", "x", ")", "…", "$", "3", ".", "1"));
  EXPECT_THAT(words(""), ElementsAre());
}

TEST(WordPiece, TakesTheLongestPieceAndKnowsWhenThereIsNone) {
  const Tokenizer tokenizer = small();
  EXPECT_THAT(tokenizer.encode("Unaffable, hello!"), ElementsAre(5, 6, 7, 10, 9, 11));
  EXPECT_THAT(tokenizer.encode("unaffablex café 日日"), ElementsAre(1, 12, 13, 13));
  EXPECT_THAT(tokenizer.encode("una unb"), ElementsAre(5, 8, 5, 16));
  EXPECT_THAT(tokenizer.encode(std::string(1, 'a') + std::string(99, 'b')).size(), 100u);
  EXPECT_THAT(tokenizer.encode(std::string(1, 'a') + std::string(100, 'b')), ElementsAre(1));
}

TEST(WordPiece, FramesOneTextOrAPair) {
  const Tokenizer tokenizer = small();
  const std::vector<std::int32_t> first = {9}, second = {12, 11};
  EXPECT_THAT(tokenizer.frame(first).ids, ElementsAre(2, 9, 3));
  const Framed pair = tokenizer.frame(first, second);
  EXPECT_THAT(pair.ids, ElementsAre(2, 9, 3, 12, 11, 3));
  EXPECT_THAT(pair.types, ElementsAre(0, 0, 0, 1, 1, 1));
}

TEST(WordPiece, FindsSpecialTokensBeforeItNormalizes) {
  EXPECT_THAT(small().encode("hello[MASK]!", Specials::Recognised), ElementsAre(9, 4, 11));
  EXPECT_THAT(small().encode("[MASK]"), ElementsAre(1, 1, 1));
}

TEST(WordPiece, DecodesWordsWithBlanksAndTidiesSigns) {
  EXPECT_EQ(small().decode(std::vector<std::int32_t>{5, 6, 7, 10, 9, 11}), "unaffable, hello!");
}

TEST(WordPiece, ReadsItsOwnFileBack) {
  const Tokenizer first = small();
  const Tokenizer second(parse_tokenizer_json(to_tokenizer_json(first.vocabulary()), "f"));
  EXPECT_EQ(second.fingerprint(), first.fingerprint());
  EXPECT_EQ(second.frame({}).ids, first.frame({}).ids);
}

TEST(WordPiece, RefusesWhatItCannotReproduce) {
  EXPECT_THAT([] { parse_vocab_txt("a\n\nb\n", "vocab.txt", {}); },
              ThrowsMessage<ConfigError>(HasSubstr("none at byte 2")));
  EXPECT_THAT([] { Tokenizer tokenizer(parse_vocab_txt("a\nb\n", "vocab.txt", {})); },
              ThrowsMessage<ConfigError>(HasSubstr("unknown token")));
  EXPECT_THAT([] { Tokenizer tokenizer(parse_vocab_txt("[UNK]\na\na\n", "vocab.txt", {})); },
              ThrowsMessage<ConfigError>(HasSubstr("ids 1 and 2")));
}

}  // namespace
}  // namespace megatron::text
