#include "megatron/data/preprocess/sentences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tests/data/support.h"
#include "tests/testing/folders.h"

namespace megatron::data {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> sentences_of(std::string_view text, std::string_view language = "en", bool keep = false) {
  std::vector<std::string_view> views;
  SentenceSplitter(language, keep).split(text, views);
  return {views.begin(), views.end()};
}

TEST(SentenceSplitter, CutsBehindFullStopsAndTheQuotesThatClose) {
  EXPECT_THAT(sentences_of("One. Two!  \"Three?\" (Four.) Five"),
              ElementsAre("One.", "Two!", "\"Three?\"", "(Four.)", "Five"));
  EXPECT_THAT(sentences_of("\xE2\x80\x9CWell\xE2\x80\xA6\xE2\x80\x9D He left. 42 came."),
              ElementsAre("\xE2\x80\x9CWell\xE2\x80\xA6\xE2\x80\x9D", "He left.", "42 came."));
  EXPECT_THAT(sentences_of("\"What?\" he asked. It is 3.14 or so... more. V1.2.Next"),
              ElementsAre("\"What?\" he asked.", "It is 3.14 or so... more.", "V1.2.Next"));
  EXPECT_THAT(sentences_of("A heading\n\nText\nthat runs on.\n \t\nEnd"),
              ElementsAre("A heading", "Text\nthat runs on.", "End"));
  EXPECT_THAT(sentences_of("\xE4\xB8\x80\xE3\x80\x82\xE4\xBA\x8C\xEF\xBC\x9F\xE3\x80\x8D\xE4\xB8\x89"),
              ElementsAre("\xE4\xB8\x80\xE3\x80\x82", "\xE4\xBA\x8C\xEF\xBC\x9F\xE3\x80\x8D", "\xE4\xB8\x89"));
  EXPECT_THAT(sentences_of(" \n\n \t"), IsEmpty());
  EXPECT_THAT(sentences_of(""), IsEmpty());
}

TEST(SentenceSplitter, DoesNotCutBehindAbbreviations) {
  EXPECT_THAT(sentences_of("Mr. and Mrs. J. R. R. Smith met Dr. No. See fig. 3, p. 12 of vol. II. No. 5 won."),
              ElementsAre("Mr. and Mrs. J. R. R. Smith met Dr. No.", "See fig. 3, p. 12 of vol. II.", "No. 5 won."));
  EXPECT_THAT(
      sentences_of("The U.S. Army left the U.S. They came at 5 p.m. and ate (e.g. Figs, etc.). It and I. He."),
      ElementsAre("The U.S. Army left the U.S.", "They came at 5 p.m. and ate (e.g. Figs, etc.).", "It and I.", "He."));
  EXPECT_THAT(sentences_of("Acme Inc. Smith of St. Paul joined Acme Inc. The end."),
              ElementsAre("Acme Inc. Smith of St. Paul joined Acme Inc.", "The end."));
}

TEST(SentenceSplitter, KnowsTheAbbreviationsOfItsLanguage) {
  EXPECT_THAT(sentences_of("Am 3. Oktober kam z.B. Hr. Maier. Es war Nr. 7.", "de"),
              ElementsAre("Am 3. Oktober kam z.B. Hr. Maier.", "Es war Nr. 7."));
  EXPECT_THAT(sentences_of("MM. Dupont et Mme. Petit. \xC3\x89t\xC3\xA9.", "french"),
              ElementsAre("MM. Dupont et Mme. Petit.", "\xC3\x89t\xC3\xA9."));
  EXPECT_THAT(sentences_of("La Sra. Ruiz. \xC2\xBFQui\xC3\xA9n? \xC3\xA9l.", "es"),
              ElementsAre("La Sra. Ruiz.", "\xC2\xBFQui\xC3\xA9n? \xC3\xA9l."));
  EXPECT_THROW(SentenceSplitter("xx"), ConfigError);
}

TEST(SentenceSplitter, KeepsWhatStandsBetweenSentencesWhereAsked) {
  const std::string text = " \n\n One.\n\nTwo. \t Three\n";
  const auto kept = sentences_of(text, "en", true);
  EXPECT_THAT(kept, ElementsAre(" \n\n One.\n\n", "Two. \t ", "Three\n"));
}

/// Cut positions of a paragraph: the bytes, without white space, before each sentence but the first.
std::set<std::size_t> cuts_of(const std::vector<std::string>& sentences) {
  std::set<std::size_t> cuts;
  std::size_t bytes = 0;
  for (const std::string& sentence : sentences) {
    if (bytes > 0) cuts.insert(bytes);
    for (const char c : sentence) bytes += c == ' ' ? 0 : 1;
  }
  return cuts;
}

/// Sentences, a line each, with blank lines between paragraphs; how many of their ends the splitter finds.
struct Found {
  std::size_t cuts = 0, found = 0, right = 0;
  double precision() const { return static_cast<double>(right) / static_cast<double>(found); }
  double recall() const { return static_cast<double>(right) / static_cast<double>(cuts); }
};

Found judge(const std::string& file, std::string_view language) {
  std::istringstream lines(read_bytes(tests_folder() + "/golden/sentences/" + file));
  std::vector<std::string> labelled;
  Found all;
  const auto paragraph_ends = [&] {
    std::string paragraph;
    for (const std::string& sentence : labelled) paragraph += (paragraph.empty() ? "" : " ") + sentence;
    const auto expected = cuts_of(labelled), cuts = cuts_of(sentences_of(paragraph, language));
    all.found += cuts.size();
    all.cuts += expected.size();
    for (const std::size_t cut : cuts) all.right += expected.count(cut);
    labelled.clear();
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.empty())
      paragraph_ends();
    else
      labelled.push_back(line);
  }
  paragraph_ends();
  return all;
}

TEST(SentenceSplitter, FindsTheSentencesLabelledInNovels) {
  const Found found = judge("sentences.txt", "en");
  EXPECT_EQ(found.cuts, 174u);
  EXPECT_GE(found.precision(), 0.98) << found.right << " of " << found.found;
  EXPECT_GE(found.recall(), 0.98) << found.right << " of " << found.cuts;
}

TEST(SentenceSplitter, FindsTheSentencesWrittenForOtherLanguages) {
  for (const std::string language : {"de", "fr", "es"}) {
    const Found found = judge("sentences_" + language + ".txt", language);
    EXPECT_GE(found.cuts, 30u);
    EXPECT_GE(found.precision(), 0.95) << language << ": " << found.right << " of " << found.found;
    EXPECT_GE(found.recall(), 0.95) << language << ": " << found.right << " of " << found.cuts;
  }
}

TEST(SentenceSplitter, GivesBackEveryByteOfAnythingInLinearTime) {
  std::string text;
  std::uint32_t state = 1;
  const std::vector<std::string> pieces = {".", "!", " ", "\n", "\n\n",         "a",    "B",    "Mr",           "\"",
                                           "(", "5", "I", "-",  "\xE3\x80\x82", "\xE2", "\xFF", "\xE2\x80\xA6", "No"};
  for (int i = 0; i < 200000; ++i) text += pieces[(state = state * 1664525 + 1013904223) % 2147483647 % pieces.size()];
  const auto kept = sentences_of(text, "en", true);
  std::string joined;
  for (const std::string& sentence : kept) joined += sentence;
  EXPECT_EQ(joined, text);
  for (const std::string& sentence : sentences_of(text)) {
    EXPECT_EQ(std::string(" \n").find(sentence.front()), std::string::npos);
    EXPECT_EQ(std::string(" \n").find(sentence.back()), std::string::npos);
  }
  for (const char* one : {".", " ", "\n", "(", ". ", ".\n", "a.", "(. "}) {
    std::string many;
    while (many.size() < 1 << 20) many += one;
    sentences_of(many);  // minutes, if not linear
  }
}

}  // namespace
}  // namespace megatron::data
