#include "megatron/text/models/word_piece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "megatron/base/error.h"
#include "megatron/text/characters/bert_tables.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/files/tokenizer_files.h"
#include "megatron/text/normalize/bert_text.h"
#include "megatron/text/tokenizer.h"
#include "tests/text/support.h"

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

/// Words as they are defined, character by character.
std::vector<std::string> plain_words(const std::string& text) {
  std::vector<std::string> result;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const DecodedChar c = decode_utf8(text.data() + at, text.data() + text.size());
    const std::string character = text.substr(at, static_cast<std::size_t>(std::max(c.length, 1)));
    at += character.size();
    const bool known = c.length > 0;
    if (known && UnicodeClasses::instance().of(c.code_point) == CharClass::Space) {
      inside = false;
    } else if (known && in_ranges(kBertPunctuation, c.code_point)) {
      result.push_back(character);
      inside = false;
    } else {
      if (!inside) result.emplace_back();
      result.back() += character;
      inside = true;
    }
  }
  return result;
}

TEST(BertText, CutsBlocksOfTextAsItCutsCharacters) {
  std::mt19937 random(9);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_text(random, 70);
    ASSERT_EQ(words(text), plain_words(text)) << testing::PrintToString(text);
  }
}

TEST(BertText, NormalizesRunsOfTextAsItNormalizesCharacters) {
  std::mt19937 random(10);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_text(random, 70) + "Ab\tC\x01\x7F" + random_text(random, 9);
    const BertNormalization options{i % 2 == 0, i % 3 == 0, i % 5 == 0, i % 7 == 0};
    std::string expected;
    for (std::size_t at = 0; at < text.size();) {
      const DecodedChar c = decode_utf8(text.data() + at, text.data() + text.size());
      const auto size = static_cast<std::size_t>(std::max(c.length, 1));
      expected += bert_normalize(text.substr(at, size), options);
      at += size;
    }
    ASSERT_EQ(bert_normalize(text, options), expected) << testing::PrintToString(text);
  }
}

/// The longest piece that is a token again and again, as it is defined.
std::vector<std::string> plain_pieces(const std::set<std::string>& tokens, const std::string& word) {
  std::vector<std::string> result;
  for (std::size_t at = 0; at < word.size();) {
    std::size_t size = word.size() - at;
    const auto piece = [&] { return (at > 0 ? "##" : "") + word.substr(at, size); };
    while (size > 0 && !tokens.contains(piece())) --size;
    if (size == 0) return {"[UNK]"};
    result.push_back(piece());
    at += size;
  }
  return result;
}

TEST(WordPiece, TakesTheLongestPiecesOfRandomVocabularies) {
  std::mt19937 random(12);
  const std::vector<std::string> characters = {"a", "b", "é", "日"};
  const auto draw = [&](std::size_t longest) {
    std::string word;
    for (std::size_t n = 1 + random() % longest; n > 0; --n) word += characters[random() % characters.size()];
    return word;
  };
  for (int round = 0; round < 40; ++round) {
    std::set<std::string> tokens = {"[UNK]", "##a", "##b", "##é", "a"};
    while (tokens.size() < 60) tokens.insert((random() % 2 == 0 ? "##" : "") + draw(random() % 4 == 0 ? 24 : 3));
    std::string file;
    for (const std::string& token : tokens) file += token + "\n";
    // Accents stay, and no character is a word of its own.
    const Tokenizer tokenizer(parse_vocab_txt(file, "vocab.txt", {true, false, false, false}));
    std::vector<std::string> text_words;
    for (int i = 0; i < 100; ++i) {
      std::string word = draw(4);
      while (random() % 3 == 0) {
        const std::string& token = *std::next(tokens.begin(), static_cast<std::ptrdiff_t>(random() % 60));
        if (token != "[UNK]") word += token.starts_with("##") ? token.substr(2) : token;
      }
      text_words.push_back(word);
    }
    std::string text;
    std::vector<std::string> expected, got;
    for (int again = 0; again < 2; ++again)  // the second time out of the cache
      for (const std::string& word : text_words) {
        text += word + " ";
        const auto pieces = plain_pieces(tokens, word);
        expected.insert(expected.end(), pieces.begin(), pieces.end());
      }
    for (const std::int32_t id : tokenizer.encode(text)) got.emplace_back(tokenizer.id_to_bytes(id));
    ASSERT_EQ(got, expected) << text;
  }
}

TEST(WordPiece, TakesAMegabyteOfOneCharacter) {
  const Tokenizer tokenizer = small();
  EXPECT_THAT(tokenizer.encode(std::string(1 << 20, 'a')), ElementsAre(1));
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, '!')), std::vector<std::int32_t>(1 << 20, 11));
  EXPECT_THAT(tokenizer.encode(std::string(1 << 20, '\n')), ElementsAre());
}

/// Each place of the word begins a long token that ends in no match: a try of each length would be cubic.
TEST(WordPiece, TakesLongTokensAndLongWordsInBoundedSteps) {
  Vocabulary vocabulary = small().vocabulary();
  const auto size = static_cast<std::int32_t>(vocabulary.tokens.size());
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"q", "##q", "##" + std::string(4000, 'q') + "z"});
  vocabulary.word_piece->max_word_characters = 1 << 20;
  std::vector<std::int32_t> expected(8000, size + 1);
  expected[0] = size;
  EXPECT_EQ(Tokenizer(vocabulary).encode(std::string(8000, 'q')), expected);
  vocabulary.tokens.emplace_back(4097, 'q');
  EXPECT_THAT([&] { Tokenizer{vocabulary}; }, ThrowsMessage<ConfigError>(HasSubstr("at most 4096 bytes")));
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
