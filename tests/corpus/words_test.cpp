#include "megatron/corpus/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/corpus/support.h"

namespace megatron::corpus {
namespace {

using testing::ElementsAre;

struct Scanned {
  std::vector<std::string> folded, standing;
  std::vector<std::uint64_t> hashes;
};

Scanned scan(const std::string& text) {
  Scanned result;
  WordScanner scanner;
  scanner.scan(text, [&](const Word& word) {
    std::string folded(word.folded);
    std::replace(folded.begin(), folded.end(), '\x7F', '_');
    result.folded.push_back(folded);
    result.standing.push_back(text.substr(word.begin, word.end - word.begin));
    result.hashes.push_back(word.hash);
  });
  return result;
}

TEST(Words, AreRunsOfLettersDigitsAndUnderscoresInLowerCase) {
  EXPECT_THAT(scan("The cat's 3rd_life, isn't it?").folded,
              ElementsAre("the", "cat", "s", "3rd_life", "isn", "t", "it"));
  EXPECT_THAT(scan("").folded, ElementsAre());
  EXPECT_THAT(scan(" \t.,;!\n").folded, ElementsAre());
  EXPECT_THAT(scan("@[`{~AZaz09").folded, ElementsAre("azaz09"));
}

TEST(Words, OfOtherScriptsAreInLowerCaseToo) {
  EXPECT_THAT(scan("ÉCOLE naïve ΣΟΦΊΑ Привет № ٣٤").folded, ElementsAre("école", "naïve", "σοφία", "привет", "٣٤"));
  EXPECT_THAT(scan("\u212Aelvin").folded, ElementsAre("kelvin"));
  EXPECT_EQ(scan("ÉCOLE").hashes, scan("école").hashes);
  EXPECT_EQ(scan("\u212Aelvin").hashes, scan("kelvin").hashes);
}

TEST(Words, OfScriptsWithoutBlanksAreSingleCharacters) {
  EXPECT_THAT(scan("abc漢字かな한국어ไทย").folded, ElementsAre("abc", "漢", "字", "か", "な", "한국어", "ไ", "ท", "ย"));
}

TEST(Words, EndAtBytesThatAreNotUtf8) {
  EXPECT_THAT(scan("ab\xFF"
                   "cd\xC3")
                  .folded,
              ElementsAre("ab", "cd"));
  EXPECT_THAT(scan("\xE6\xBC").folded, ElementsAre());
  EXPECT_THAT(scan("x\xC0\xAFy \xED\xA0\x80z").folded, ElementsAre("x", "y", "z"));
}

TEST(Words, StandWhereTheySayWhateverLiesBeforeThem) {
  const std::string text = "One twö three—FOUR 漢x5 " + std::string(70, 'q') + " Ünd so_weiter";
  const Scanned plain = scan(text);
  EXPECT_THAT(plain.standing,
              ElementsAre("One", "twö", "three", "FOUR", "漢", "x5", std::string(70, 'q'), "Ünd", "so_weiter"));
  for (int shift = 1; shift < 140; ++shift) {
    const Scanned shifted = scan(std::string(static_cast<std::size_t>(shift), shift % 2 == 0 ? ' ' : '-') + text);
    EXPECT_EQ(shifted.standing, plain.standing) << shift;
    EXPECT_EQ(shifted.hashes, plain.hashes) << shift;
  }
}

TEST(Words, AreThoseOfASlowScannerOnRandomText) {
  std::mt19937 engine(1);
  const std::string alphabet = "aZ09_ .-'\n@[`{";
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (unsigned i = engine() % 300; i > 0; --i) text += alphabet[engine() % alphabet.size()];
    EXPECT_EQ(scan(text).folded, naive_words(text)) << text;
  }
}

TEST(Words, HaveTheirOwnHashEach) {
  std::map<std::uint64_t, std::string> seen;
  WordScanner scanner;
  for (int i = 0; i < 200000; ++i) {
    const std::string word = "w" + std::to_string(i);
    scanner.scan(word, [&](const Word& w) { EXPECT_TRUE(seen.emplace(w.hash, word).second) << word; });
  }
}

TEST(Ngrams, AreEqualExactlyWhereTheirWordsAre) {
  std::mt19937 engine(2);
  std::map<std::string, std::uint64_t> hash_of;
  std::map<std::uint64_t, std::string> ngram_of;
  for (int round = 0; round < 50; ++round) {
    const std::string text = join(random_words(engine, 40, 3));
    std::vector<std::uint64_t> hashes;
    append_ngrams(scan(text).hashes, 4, hashes);
    const auto ngrams = naive_ngrams(text, 4);
    ASSERT_EQ(hashes.size(), ngrams.size());
    for (std::size_t i = 0; i < ngrams.size(); ++i) {
      EXPECT_EQ(hash_of.emplace(ngrams[i], hashes[i]).first->second, hashes[i]) << ngrams[i];
      EXPECT_EQ(ngram_of.emplace(hashes[i], ngrams[i]).first->second, ngrams[i]);
    }
  }
  EXPECT_EQ(hash_of.size(), 81u);  // every run of four of three words came
}

std::vector<std::uint64_t> shingles(ShingleOptions options, const std::string& text) {
  return Shingler(options).shingles(text);
}

TEST(Shingles, OfShortTextsAreTheWholeText) {
  const ShingleOptions words{.size = 5};
  EXPECT_TRUE(shingles(words, "").empty());
  EXPECT_TRUE(shingles(words, "?! \xFF").empty());
  const auto pair = shingles(words, "Hello, world");
  EXPECT_EQ(pair.size(), 1u);
  EXPECT_EQ(shingles(words, "hello world"), pair);
  EXPECT_NE(shingles(words, "world hello"), pair);
  EXPECT_EQ(shingles(words, "a b c d e").size(), 1u);
  EXPECT_EQ(shingles(words, "a b c d e f").size(), 2u);
}

TEST(Shingles, OfCharactersGoOverTheWordsJoinedByBlanks) {
  const ShingleOptions characters{.characters = true, .size = 3};
  const auto expected = shingles(characters, "Ab,  cde");  // "ab cde"
  EXPECT_EQ(expected.size(), 4u);
  EXPECT_EQ(shingles(characters, "aB - CDE."), expected);
  EXPECT_NE(shingles(characters, "abc de"), expected);
  EXPECT_EQ(shingles(characters, "äöü").size(), 1u);
}

TEST(Shingles, HaveOneTo64Units) {
  EXPECT_THROW(Shingler({.size = 0}), ConfigError);
  EXPECT_THROW(Shingler({.size = 65}), ConfigError);
}

}  // namespace
}  // namespace megatron::corpus
