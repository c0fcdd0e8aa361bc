#include "megatron/corpus/overlap/overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "megatron/corpus/overlap/ngram_table.h"
#include "tests/corpus/support.h"

namespace megatron::corpus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(NgramTable, FindsWhatWasAddedAndNothingElse) {
  std::mt19937_64 engine(1);
  std::map<std::uint64_t, std::uint32_t> expected;
  NgramTable table;
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t hash = i % 5 == 0 ? engine() % 64 : engine();  // small ones: 0 among them
    const auto [entry, is_new] = expected.emplace(hash, expected.size());
    EXPECT_EQ(table.add(hash), entry->second);
  }
  EXPECT_EQ(table.size(), expected.size());
  for (const auto& [hash, number] : expected) EXPECT_EQ(table.find(hash), number);
  for (int i = 0; i < 200000; ++i) {
    const std::uint64_t hash = engine();
    if (!expected.contains(hash)) {
      EXPECT_EQ(table.find(hash), NgramTable::kNone);
    }
  }
}

/// Pieces of `text` cut around the first occurrence of each `match`.
std::vector<std::string> cut(const std::string& text, const std::vector<std::string>& matches, CutOptions options) {
  std::vector<TextSpan> spans;
  for (const std::string& match : matches) spans.push_back({text.find(match), text.find(match) + match.size()});
  std::vector<std::string> pieces;
  for (const TextSpan& piece : cut_out(text, spans, options))
    pieces.push_back(text.substr(piece.begin, piece.end - piece.begin));
  return pieces;
}

TEST(Cut, RemovesTheSentencesAroundAMatch) {
  const CutOptions options{.radius = 0, .min_characters = 3};
  const std::string text = "First one. Second, the match here! Third? Fourth.";
  EXPECT_THAT(cut(text, {"match"}, options), ElementsAre("First one.", " Third? Fourth."));
  EXPECT_THAT(cut(text, {"First"}, options), ElementsAre(" Second, the match here! Third? Fourth."));
  EXPECT_THAT(cut(text, {"Fourth"}, options), ElementsAre("First one. Second, the match here! Third?"));
  EXPECT_THAT(cut("no end of a sentence anywhere", {"end"}, options), ElementsAre());
  EXPECT_THAT(cut(text, {}, options), ElementsAre(text));
}

TEST(Cut, RemovesTheRadiusFirst) {
  // Five characters before the match is the '.' after "ab". Three after its end is the '.' after "ef".
  const std::string text = "xyz ab. cd match ef. gh! ij kl.";
  EXPECT_THAT(cut(text, {"match"}, {.radius = 3, .min_characters = 2}), ElementsAre("xyz ab.", " gh! ij kl."));
  EXPECT_THAT(cut(text, {"match"}, {.radius = 4, .min_characters = 2}), ElementsAre("xyz ab.", " ij kl."));
  EXPECT_THAT(cut(text, {"match"}, {.radius = 5, .min_characters = 2}), ElementsAre("xyz ab.", " ij kl."));
  EXPECT_THAT(cut(text, {"match"}, {.radius = 6, .min_characters = 2}), ElementsAre(" ij kl."));
  EXPECT_THAT(cut(text, {"match"}, {.radius = 1000, .min_characters = 2}), ElementsAre());
}

TEST(Cut, CountsCharactersNotBytes) {
  // Seven characters before the match are before "ö.", seven bytes are not; the same after it with "üüü.".
  const std::string text = "ä. ö. ööö match üüü. b. end.";
  EXPECT_THAT(cut(text, {"match"}, {.radius = 7, .min_characters = 1}), ElementsAre("ä.", " end."));
  EXPECT_THAT(cut(text, {"match"}, {.radius = 7, .min_characters = 2}), ElementsAre(" end."));
}

TEST(Cut, DropsPiecesThatAreNotLongerThanTheLeast) {
  const std::string text = "12345. match. 123456.";
  EXPECT_THAT(cut(text, {"match"}, {.radius = 0, .min_characters = 6}), ElementsAre(" 123456."));
  EXPECT_THAT(cut(text, {"match"}, {.radius = 0, .min_characters = 5}), ElementsAre("12345.", " 123456."));
  EXPECT_THAT(cut(text, {"match"}, {.radius = 0, .min_characters = 8}), ElementsAre());
}

TEST(Cut, GoesOnInTheRestAlone) {
  const CutOptions options{.radius = 0, .min_characters = 2};
  EXPECT_THAT(cut("aa. m1 m2. bb. m3. cc.", {"m1", "m2", "m3"}, options), ElementsAre("aa.", " bb.", " cc."));
  // The second match begins where the first took it away: it cuts nothing.
  EXPECT_THAT(cut("aa. m1 x m2. bb. cc.", {"m1", "m2"}, options), ElementsAre("aa.", " bb. cc."));
}

class OverlapTest : public testing::Test {
 protected:
  OverlapOptions options(const std::string& training, const std::string& test, int ngram) {
    write_bytes(folder_ / "train.jsonl", training);
    write_bytes(folder_ / "test.jsonl", test);
    OverlapOptions result{.ngram = ngram, .min_ngram = ngram};
    result.training.inputs = {folder_ / "train.jsonl"};
    result.training.block_bytes = 4096;
    result.test.inputs = {folder_ / "test.jsonl"};
    result.report = folder_ / "report";
    result.workers = 2;
    return result;
  }
  std::vector<nlohmann::json> rows(const std::string& name) {
    std::vector<nlohmann::json> result;
    for (const std::string& line : lines_of(read_bytes(folder_ / name))) result.push_back(nlohmann::json::parse(line));
    return result;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> result;
    for (const auto& row : rows("out")) result.push_back(row["text"]);
    return result;
  }
  TemporaryFolder folder_;
};

TEST_F(OverlapTest, IsTheShareOfTheTestsNgramsThatOccur) {
  // Test trigrams: "a b c", "b c d", "c d e" | none | "x y z", "y z x", "z x y", "x y z" again.
  const auto result = overlap(options(json_line("A, b: c. D") + json_line("x y") + json_line("z y Z X, y"),
                                      json_line("a b c d e") + json_line("a b") + json_line("x y z x y z"), 3));
  EXPECT_EQ(result.test_documents, 3);
  EXPECT_EQ(result.documents_with_ngrams, 2);
  EXPECT_EQ(result.documents_touched, 2);
  EXPECT_EQ(result.ngrams, 7);
  EXPECT_EQ(result.found, 4);  // a b c, b c d; y z x, z x y; no n-gram goes over the end of a document
  EXPECT_EQ(result.distinct, 6);
  EXPECT_EQ(result.distinct_found, 4);
  EXPECT_NEAR(result.percent(), 100.0 * 4 / 7, 1e-9);
  EXPECT_EQ(result.training_documents, 3);
  EXPECT_EQ(result.training_words, 11);
  const auto report = rows("report");
  ASSERT_EQ(report.size(), 3u);
  EXPECT_EQ(report[0]["found"], 2);
  EXPECT_NEAR(report[0]["percent"].get<double>(), 66.6667, 1e-3);
  EXPECT_EQ(report[1]["ngrams"], 0);
  EXPECT_EQ(report[2]["number"], 3);
}

TEST_F(OverlapTest, IsWhatBruteForceCounts) {
  std::int64_t all_found = 0;
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::mt19937 engine(seed);
    const std::size_t n = 1 + seed % 4;
    std::string training, test;
    std::set<std::string> known, distinct, distinct_found;
    std::int64_t ngrams = 0, found = 0;
    for (int i = 0; i < 60; ++i) {
      const std::string text = join(random_words(engine, 40, 25));
      training += json_line(text);
      for (const auto& ngram : naive_ngrams(text, n)) known.insert(ngram);
    }
    for (int i = 0; i < 20; ++i) {
      const std::string text = join(random_words(engine, 30, 40));
      test += json_line(text);
      for (const auto& ngram : naive_ngrams(text, n)) {
        ++ngrams;
        distinct.insert(ngram);
        if (known.contains(ngram)) {
          ++found;
          distinct_found.insert(ngram);
        }
      }
    }
    OverlapOptions wanted = options(training, test, static_cast<int>(n));
    wanted.workers = 1 + static_cast<int>(seed % 3);
    const auto result = overlap(wanted);
    EXPECT_EQ(result.ngrams, ngrams);
    EXPECT_EQ(result.found, found);
    EXPECT_EQ(result.distinct, static_cast<std::int64_t>(distinct.size()));
    EXPECT_EQ(result.distinct_found, static_cast<std::int64_t>(distinct_found.size()));
    if (n > 1) {
      EXPECT_LT(found, ngrams);
    }
    all_found += found;
  }
  EXPECT_GT(all_found, 500);
}

TEST_F(OverlapTest, TakesShortTestDocumentsAsOneNgram) {
  OverlapOptions wanted = options(
      json_line("say one two three four five"),
      json_line("one two three") + json_line("one two") + json_line("two three four five") + json_line("five"), 4);
  wanted.min_ngram = 2;
  const auto result = overlap(wanted);
  EXPECT_EQ(result.documents_with_ngrams, 3);
  EXPECT_EQ(result.ngrams, 3);
  EXPECT_EQ(result.found, 3);
}

/// The documents that are left, by a slow search for n-grams as text. For text of words joined by single spaces, with
/// '.' after some of them.
std::vector<std::vector<std::string>> naive_cut(const std::vector<std::string>& training,
                                                const std::vector<std::string>& test, std::size_t n, std::size_t radius,
                                                std::size_t least) {
  std::set<std::string> unwanted;
  for (const std::string& text : test)
    for (const std::string& ngram : naive_ngrams(text, n)) unwanted.insert(ngram);
  std::vector<std::vector<std::string>> result;
  for (const std::string& original : training) {
    std::vector<std::string> pieces;
    std::string text = original;
    for (bool cuts = true; cuts;) {
      cuts = false;
      for (std::size_t begin = 0; begin < text.size() && !cuts; ++begin) {
        if (begin > 0 && text[begin - 1] != ' ') continue;
        std::size_t end = begin;  // of n words
        for (std::size_t words = 0; words < n && end < text.size(); ++words) {
          while (end < text.size() && (text[end] == ' ' || text[end] == '.')) ++end;
          while (end < text.size() && text[end] != ' ' && text[end] != '.') ++end;
        }
        const auto words = naive_words(text.substr(begin, end - begin));
        if (words.size() != n || !unwanted.contains(join(words))) continue;
        cuts = true;
        std::size_t dot = begin >= radius ? text.rfind('.', begin - radius) : std::string::npos;
        if (begin < radius || dot == 0) dot = std::string::npos;
        const std::string before = dot == std::string::npos ? "" : text.substr(0, dot + 1);
        const std::size_t next = end + radius < text.size() ? text.find('.', end + radius) : std::string::npos;
        const std::string after = next == std::string::npos ? "" : text.substr(next + 1);
        if (before.size() > least) pieces.push_back(before);
        text = after.size() > least ? after : "";
      }
    }
    if (!text.empty()) pieces.push_back(text);
    result.push_back(pieces);
  }
  return result;
}

TEST_F(OverlapTest, CutsWhatASlowSearchCuts) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    std::mt19937 engine(seed);
    std::vector<std::string> training, test;
    const auto sentences = [&](int words) {
      std::string text;
      for (const std::string& word : random_words(engine, words, 30))
        text += (text.empty() ? "" : " ") + word + (engine() % 6 == 0 ? "." : "");
      return text;
    };
    std::string training_lines, test_lines;
    for (int i = 0; i < 80; ++i) training_lines += json_line(training.emplace_back(sentences(120)));
    for (int i = 0; i < 6; ++i) test_lines += json_line(test.emplace_back(join(random_words(engine, 20, 30))));
    OverlapOptions wanted = options(training_lines, test_lines, 2);
    wanted.output = folder_ / "out";
    wanted.common = 0;
    wanted.cut = {.radius = 10, .min_characters = 15, .max_pieces = 4};
    const auto result = overlap(wanted);
    std::vector<std::string> expected;
    std::int64_t shattered = 0, split = 0, trimmed = 0, emptied = 0, unchanged = 0;
    for (std::size_t i = 0; i < training.size(); ++i) {
      const auto pieces = naive_cut({training[i]}, test, 2, 10, 15)[0];
      const bool is_whole = pieces == std::vector<std::string>{training[i]};
      unchanged += is_whole ? 1 : 0;
      trimmed += pieces.size() == 1 && !is_whole ? 1 : 0;
      emptied += pieces.empty() ? 1 : 0;
      shattered += pieces.size() > 4 ? 1 : 0;
      split += pieces.size() > 1 && pieces.size() <= 4 ? 1 : 0;
      if (pieces.size() <= 4) expected.insert(expected.end(), pieces.begin(), pieces.end());
    }
    EXPECT_EQ(texts(), expected);
    EXPECT_EQ(result.matched, 80 - unchanged);
    EXPECT_EQ(result.trimmed, trimmed);
    EXPECT_EQ(result.emptied, emptied);
    EXPECT_EQ(result.shattered, shattered);
    EXPECT_EQ(result.split, split);
    EXPECT_GT(split, 3);
  }
}

TEST_F(OverlapTest, WritesPiecesInTheirLinesAndOtherLinesByteForByte) {
  const std::string whole = R"(  {"id": 1.0, "text" : "Nothing of it here", "x": [1]} )";
  OverlapOptions wanted =
      options(whole + "\n" + R"({"id": 2, "text": "One \"a\". the match is. Two.", "text2": "text"})" + "\n" +
                  R"({"split_id": "old", "text": ["the match is.", "Three\n!"]})" + "\n" + json_line("the match is"),
              json_line("The match is"), 3);
  wanted.output = folder_ / "out";
  wanted.cut = {.radius = 0, .min_characters = 2};
  const auto result = overlap(wanted);
  EXPECT_THAT(
      lines_of(read_bytes(folder_ / "out")),
      ElementsAre(whole, R"({"split_id": "overlap-0000000002-0000", "id": 2, "text": "One \"a\".", "text2": "text"})",
                  R"({"split_id": "overlap-0000000002-0001", "id": 2, "text": " Two.", "text2": "text"})",
                  R"({"split_id": "old-overlap-0000000003-0000", "text": " Three\n!"})"));
  EXPECT_EQ(result.matched, 3);
  EXPECT_EQ(result.split, 1);
  EXPECT_EQ(result.trimmed, 1);
  EXPECT_EQ(result.emptied, 1);
  EXPECT_EQ(result.pieces, 3);
}

TEST_F(OverlapTest, LeavesCommonPhrasesAlone) {
  std::string training;
  for (int i = 0; i < 5; ++i) training += json_line("Aaa bbb. once upon a time. Ccc " + std::to_string(i) + ".");
  training += json_line("Ddd. a rare one here. Eee.");
  OverlapOptions wanted = options(training, json_line("once upon a time") + json_line("a rare one here"), 4);
  wanted.output = folder_ / "out";
  wanted.cut = {.radius = 0, .min_characters = 2};
  wanted.common = 5;
  auto result = overlap(wanted);
  EXPECT_EQ(result.matched, 1);
  EXPECT_EQ(result.common_phrases, 1);
  EXPECT_EQ(result.found, 2) << "the report counts them all the same";
  wanted.common = 6;
  EXPECT_EQ(overlap(wanted).matched, 6);
  wanted.common = 0;
  EXPECT_EQ(overlap(wanted).matched, 6);
}

TEST_F(OverlapTest, ReadsTestSetsInTheirFormats) {
  const auto documents = [&](const std::string& content, const std::string& format, const std::string& key) {
    write_bytes(folder_ / "set", content);
    std::vector<std::string> result;
    read_test_set({.inputs = {folder_ / "set"}, .format = format, .key = key},
                  [&](std::string_view text, const std::string&, std::int64_t number) {
                    result.push_back(std::to_string(number) + ":" + std::string(text));
                  });
    return result;
  };
  EXPECT_THAT(documents("{\"text\": \"a\"}\n{\"text\": [\"b\", \"c\"]}\n", "auto", ""),
              ElementsAre("1:a", "2:b", "2:c"));
  EXPECT_THAT(documents("{\"q\": \"a\"}\n", "jsonl", "q"), ElementsAre("1:a"));
  EXPECT_THAT(documents("a b\n\nc\n", "lines", ""), ElementsAre("1:a b", "3:c"));
  EXPECT_THAT(documents(" \n = One = \n\n text \n = = Part = = \n more \n = Two = \n x = y \n", "wikitext", ""),
              ElementsAre("2:= One =\ntext\n= = Part = =\nmore\n", "7:= Two =\nx = y\n"));
  const std::string squad =
      R"({"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "c1", "qas": [{"question": "q1"},)"
      R"({"question": "q2", "is_impossible": true}]}, {"context": "c2", "qas": []}]}]})";
  EXPECT_THAT(documents(squad, "squad", ""), ElementsAre("1:q1", "2:q2"));
  EXPECT_THAT(documents(squad, "squad", "context"), ElementsAre("1:c1", "2:c2"));
  for (const std::string bad : {"", "[1]", "{}", R"({"data": 1})", R"({"data": [{"paragraphs": [{"context": 5}]}]})",
                                R"({"data": [{"paragraphs": [{"context": "c", "qas": [[]]}]}]})"})
    EXPECT_THROW(documents(bad, "squad", ""), ConfigError) << bad;
  EXPECT_THROW(documents(squad, "squad", "answer"), ConfigError);
  EXPECT_THROW(documents("x", "nonsense", ""), ConfigError);
}

TEST_F(OverlapTest, TakesTextThatIsNotUtf8AndHasNoWords) {
  write_bytes(folder_ / "train.txt", "\xFF\xFE\n\na \xFF b. \xC3\n");
  OverlapOptions wanted = options("", json_line("A b"), 2);
  wanted.training.inputs = {folder_ / "train.txt"};
  wanted.training.format = data::TextFormat::Lines;
  wanted.output = folder_ / "out";
  wanted.cut = {.radius = 0, .min_characters = 0};
  const auto result = overlap(wanted);
  EXPECT_EQ(result.found, 1);
  EXPECT_EQ(read_bytes(folder_ / "out"), "\xFF\xFE\n \xC3\n");
}

TEST_F(OverlapTest, RefusesWhatItCannotDo) {
  const auto refusal = [&](auto change) {
    OverlapOptions wanted = options(json_line("a b"), json_line("a b"), 2);
    change(wanted);
    return error_of([&] { overlap(wanted); });
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_THAT(refusal([](auto& o) { o.ngram = 3, o.min_ngram = 3; }), HasSubstr("a document of 3 words"));
  EXPECT_THAT(refusal([](auto& o) { o.ngram = 65; }), HasSubstr("1 to 64"));
  EXPECT_THAT(refusal([](auto& o) { o.min_ngram = 3; }), HasSubstr("1 to 64"));
  EXPECT_THAT(refusal([](auto& o) { o.common = -1; }), HasSubstr("occurrences"));
  EXPECT_THAT(refusal([](auto& o) { o.test.inputs.clear(); }), HasSubstr("a test set"));
  EXPECT_THAT(refusal([](auto& o) { o.training.inputs = {"-"}, o.output = "x"; }), HasSubstr("twice"));
  EXPECT_THAT(refusal([](auto& o) { o.training.format = data::TextFormat::File, o.output = "x"; }),
              HasSubstr("must be records"));
}

}  // namespace
}  // namespace megatron::corpus
