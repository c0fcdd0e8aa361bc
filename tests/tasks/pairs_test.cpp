#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "megatron/tasks/pair_rows.h"
#include "megatron/tasks/published/glue_examples.h"
#include "megatron/tasks/published/race_examples.h"
#include "megatron/tasks/scores/metrics.h"
#include "megatron/tasks/scores/prediction_files.h"
#include "megatron/tasks/scores/seeds.h"
#include "tests/tasks/support.h"
#include "tests/testing/temporary_folder.h"

namespace megatron::tasks {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kMnli =
    "\xEF\xBB\xBFindex\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\r\n"
    "7\tfiction\tHe said \"no\".\tNothing \xC3\xA9lse \tneutral\tentailment\r\n"
    "8\tfiction\ta\tb\tneutral\t-\r\n"
    "\n"
    "9\ttravel\t\tc\tneutral\tcontradiction";

TEST(Glue, MnliIsReadByTheNamesOfItsColumns) {
  const PairExamples read = parse_glue(kMnli, "dev.tsv", GlueTask::Mnli);
  ASSERT_EQ(read.examples.size(), 2u);
  EXPECT_EQ(read.passed_over, 1);
  EXPECT_EQ(read.examples[0].id, "7");
  EXPECT_EQ(read.examples[0].first, "He said \"no\".");
  EXPECT_EQ(read.examples[0].second, "Nothing \xC3\xA9lse ");
  EXPECT_EQ(read.examples[0].label, 1);
  EXPECT_EQ(read.examples[1].first, "");
  EXPECT_EQ(read.examples[1].label, 0);
}

TEST(Glue, QqpPassesOverLinesThatAreBrokenOffOrEmpty) {
  const PairExamples read = parse_glue(
      "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\twhy\thow\t1\n4\t5\t6\tbroken\n7\t8\t9\tx\t\t0\n"
      "10\t11\t12\tx\ty\t0\n",
      "train.tsv", GlueTask::Qqp);
  ASSERT_EQ(read.examples.size(), 2u);
  EXPECT_EQ(read.passed_over, 2);
  EXPECT_EQ(read.examples[0].label, 1);
  EXPECT_EQ(read.examples[1].id, "10");
}

TEST(Glue, ATestSetHasNoLabels) {
  const PairExamples read = parse_glue("id\tquestion1\tquestion2\n0\ta\tb\n", "test.tsv", GlueTask::Qqp);
  ASSERT_EQ(read.examples.size(), 1u);
  EXPECT_EQ(read.examples[0].label, -1);
}

TEST(Glue, RefusesWhatIsNoSuchTableByFileAndLine) {
  const auto error = [](const char* text, GlueTask task) { return error_of([&] { parse_glue(text, "x.tsv", task); }); };
  const auto mnli = GlueTask::Mnli, qqp = GlueTask::Qqp;
  EXPECT_THAT(error("", mnli), HasSubstr("x.tsv, line 1: the table must have a line of column names"));
  EXPECT_THAT(error("index\tsentence1\n", mnli), HasSubstr("line 1: a table of MNLI must have the column sentence2"));
  EXPECT_THAT(error("sentence1\tsentence2\tgold_label\na\tb\n", mnli), HasSubstr("line 2: each line must have 3"));
  EXPECT_THAT(error("sentence1\tsentence2\tgold_label\na\tb\tmaybe\n", mnli), HasSubstr("line 2: the label must be"));
  EXPECT_THAT(error("sentence1\tsentence2\tgold_label\na\t\xFF\tneutral\n", mnli), HasSubstr("line 2: the table must"));
  EXPECT_THAT(error("question1\tquestion2\tis_duplicate\na\tb\t1\t2\n", qqp), HasSubstr("line 2: each line must have"));
  EXPECT_THAT(error("question1\tquestion2\tis_duplicate\na\na\n", qqp), HasSubstr("at most one line in 100"));
}

constexpr const char* kArticle =
    R"({"article": "aa bb", "id": "m1.txt", "questions": ["c _ d _", "e?"], "answers": ["D", "A"],
        "options": [["x", "y", "", "z z"], ["f", "g", "h", "i"]]})";

std::string one_line(std::string text) {
  std::erase(text, '\n');
  return text;
}

TEST(Race, OptionsStandInTheBlanksOrBehindTheQuestion) {
  RaceExamples examples;
  parse_race(one_line(kArticle) + "\n \n", "m1.txt", examples);
  ASSERT_EQ(examples.questions.size(), 2u);
  EXPECT_THAT(examples.articles, ElementsAre("aa bb"));
  EXPECT_THAT(examples.questions[0].texts, ElementsAre("c x d x", "c y d y", "c  d ", "c z z d z z"));
  EXPECT_THAT(examples.questions[1].texts, ElementsAre("e? f", "e? g", "e? h", "e? i"));
  EXPECT_EQ(examples.questions[0].label, 3);
  EXPECT_EQ(examples.questions[1].id, "m1.txt-1");
}

TEST(Race, AFolderIsReadInTheOrderOfItsNames) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "high");
  const auto write = [&](const char* name, const std::string& article) {
    std::ofstream(folder.path() / name) << R"({"article": ")" << article
                                        << R"(", "questions": ["q"], "options": [["a", "b", "c", "d"]]})";
  };
  write("b.txt", "second");
  write("high/c.txt", "third");
  write("a.txt", "first");
  write("notes.md", "none");
  const RaceExamples examples = read_race(folder.path());
  EXPECT_THAT(examples.articles, ElementsAre("first", "second", "third"));
  EXPECT_EQ(examples.questions[1].id, "b.txt:1-0");
  EXPECT_EQ(examples.questions[1].label, -1);
  EXPECT_EQ(examples.questions[1].level, RaceLevel::Unknown);
  EXPECT_EQ(examples.questions[2].level, RaceLevel::High);
  EXPECT_THAT(error_of([&] { read_race(folder.path() / "nothing"); }), HasSubstr("nothing"));
}

TEST(Race, RefusesWhatIsNoQuestionByFileAndLine) {
  const auto error = [](const std::string& line) {
    return error_of([&] {
      RaceExamples examples;
      parse_race("\n" + line, "x.txt", examples);
    });
  };
  EXPECT_THAT(error("{"), HasSubstr("x.txt, line 2: the text must be JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("line 2: an object"));
  EXPECT_THAT(error(R"({"questions": []})"), HasSubstr("must have a \"options\""));
  EXPECT_THAT(error(R"({"article": 1, "questions": [], "options": []})"), HasSubstr("\"article\" must be a text"));
  EXPECT_THAT(error(R"({"article": "", "questions": ["q"], "options": []})"), HasSubstr("as many options"));
  const auto with = [](const std::string& options, const std::string& answers, const std::string& question) {
    return R"({"article": "", "questions": [")" + question + R"("], "options": )" + options + R"(, "answers": )" +
           answers + "}";
  };
  EXPECT_THAT(error(with(R"([["a", "b", "c"]])", R"(["A"])", "q")), HasSubstr("question 1: a question must have four"));
  EXPECT_THAT(error(with(R"([["a", "b", "c", 4]])", R"(["A"])", "q")), HasSubstr("\"options\" must be a text"));
  EXPECT_THAT(error(with(R"([["a", "b", "c", "d"]])", R"(["E"])", "q")), HasSubstr("an answer must be A, B, C or D"));
  EXPECT_THAT(
      error(with("[[\"" + std::string(2000, 'x') + R"(", "b", "c", "d"]])", R"(["A"])", std::string(2000, '_'))),
      HasSubstr("at most 1048576 bytes"));
}

TEST(PairRows, AreCutOneTokenAfterTheOtherOffTheLongerText) {
  for (std::size_t first = 0; first < 12; ++first)
    for (std::size_t second = 0; second < 12; ++second)
      for (std::size_t room = 0; room < 16; ++room) {
        std::vector<int> a(first), b(second);
        while (a.size() + b.size() > room)
          if (a.size() > b.size())
            a.pop_back();
          else
            b.pop_back();
        std::size_t x = first, y = second;
        truncate_pair(x, y, room);
        ASSERT_EQ(x, a.size()) << first << ' ' << second << ' ' << room;
        ASSERT_EQ(y, b.size()) << first << ' ' << second << ' ' << room;
      }
}

TEST(PairRows, FrameTwoTexts) {
  PairExamples examples;
  examples.examples = {{.id = "1", .first = "ab", .second = "c"}, {.id = "2", .first = "abcdefgh", .second = "xyz"}};
  const PairRows rows = pair_rows(examples, letter_tokenizer(), bert_frame(letter_tokenizer()), 9, 2);
  ASSERT_EQ(rows.size(), 2u);
  std::vector<std::int32_t> ids(9, -1), types(9, -1);
  EXPECT_EQ(rows.fill(0, ids, types), 6);
  EXPECT_THAT(ids, ElementsAre(2, 5, 32, 3, 7, 3, 0, 0, 0));
  EXPECT_THAT(types, ElementsAre(0, 0, 0, 0, 1, 1, 0, 0, 0));
  EXPECT_EQ(rows.length(1), 9);
  EXPECT_EQ(rows.fill(1, ids, types), 9);
  EXPECT_THAT(ids, ElementsAre(2, 5, 32, 33, 3, 28, 55, 56, 3));
  EXPECT_THAT(types, ElementsAre(0, 0, 0, 0, 0, 1, 1, 1, 1));
  std::vector<std::int32_t> narrow(5), narrow_types(5);
  EXPECT_THROW(rows.fill(0, narrow, narrow_types), std::logic_error);
  EXPECT_THAT(error_of([&] { pair_rows(examples, letter_tokenizer(), bert_frame(letter_tokenizer()), 4, 1); }),
              HasSubstr("5 or more"));
}

TEST(PairRows, OfARobertaHaveTwoSeparatorsBetweenTheirTexts) {
  const BertFrame frame{.cls = 2, .sep = 3, .pad = 0, .separators = 2};
  PairRows rows(frame, 9);
  const std::vector<std::int32_t> first{11, 12, 13, 14}, second{21, 22};
  rows.add(first, second);
  EXPECT_EQ(rows.length(0), 9);  // the first text is cut
  std::vector<std::int32_t> ids(10, -1), types(10, -1);
  EXPECT_EQ(rows.fill(0, ids, types), 9);
  EXPECT_THAT(ids, ElementsAre(2, 11, 12, 13, 3, 3, 21, 22, 3, 0));
  EXPECT_THAT(types, ElementsAre(0, 0, 0, 0, 0, 0, 1, 1, 1, 0));
  EXPECT_THAT(error_of([&] { PairRows(frame, 5); }), HasSubstr("6 or more"));
}

TEST(PairRows, OfRaceHaveTheArticleBehindEachOption) {
  RaceExamples examples;
  parse_race(one_line(kArticle), "m1.txt", examples);
  const PairRows rows = choice_rows(examples, letter_tokenizer(), bert_frame(letter_tokenizer()), 16, 3, 1);
  ASSERT_EQ(rows.size(), 8u);
  std::vector<std::int32_t> ids(16), types(16);
  EXPECT_EQ(rows.fill(3, ids, types), 10);  // "c z z d z z" is cut to "c z z"
  EXPECT_THAT(std::vector(ids.begin(), ids.begin() + 10), ElementsAre(2, 7, 30, 30, 3, 5, 31, 6, 32, 3));
  EXPECT_EQ(rows.fill(4, ids, types), 10);
  EXPECT_THAT(std::vector(ids.begin(), ids.begin() + 5), ElementsAre(2, 9, 1, 10, 3));
}

TEST(Metrics, AreWhatTheirDefinitionsSay) {
  const std::vector<float> logits = {0, 1, 1, 2, 2, 0, -3, -5, -4};
  EXPECT_THAT(best_classes(logits, 3), ElementsAre(1, 0, 0));
  const std::vector<std::int32_t> predicted = {1, 1, 0, 0, 1, 1}, labels = {1, 0, 0, 0, 1, 1};
  EXPECT_DOUBLE_EQ(accuracy(predicted, labels), 5.0 / 6);
  EXPECT_DOUBLE_EQ(binary_f1(predicted, labels), 6.0 / 7);
  EXPECT_EQ(accuracy({}, {}), 0);
  EXPECT_EQ(binary_f1(std::vector<std::int32_t>{0}, std::vector<std::int32_t>{0}), 0);
  EXPECT_THROW(accuracy(predicted, std::vector<std::int32_t>{1}), std::logic_error);
  EXPECT_THROW(best_classes(logits, 2), std::logic_error);
}

TEST(Seeds, MediansAndEnsembles) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_THROW(median({}), std::logic_error);
  EXPECT_THAT(mean_logits(std::vector<std::vector<float>>{{1, 2}, {3, 5}}), ElementsAre(2, 3.5F));
  EXPECT_THROW(mean_logits(std::vector<std::vector<float>>{{1, 2}, {3}}), std::logic_error);
}

TEST(Seeds, MakeATable) {
  SeedTable table{.task = "QQP",
                  .metrics = {"accuracy", "F1"},
                  .runs = {{.seed = 1, .values = {90.126, 80}}, {.seed = 2, .values = {91, 79}}, {3, {89, 81}}},
                  .ensemble = {92, 82}};
  EXPECT_EQ(table.markdown(),
            "| QQP | accuracy | F1 |\n|--|--:|--:|\n| seed 1 | 90.13 | 80.00 |\n| seed 2 | 91.00 | 79.00 |\n"
            "| seed 3 | 89.00 | 81.00 |\n| median of 3 | 90.13 | 80.00 |\n| ensemble of 3 | 92.00 | 82.00 |\n");
  const auto json = nlohmann::json::parse(table.json());
  EXPECT_EQ(json["metric"], "accuracy");
  EXPECT_EQ(json["seeds"]["2"]["F1"], 79.0);
  EXPECT_EQ(json["median"]["accuracy"], 90.126);
  EXPECT_EQ(json["ensemble"]["F1"], 82.0);
  table.ensemble.clear();
  EXPECT_TRUE(nlohmann::json::parse(table.json())["ensemble"].is_null());
}

TEST(Seeds, MakeATableOfSeveralSets) {
  SeedTable table{.task = "mnli",
                  .metrics = {"accuracy", "accuracy", "f1"},
                  .sets = {"matched", "mismatched", "mismatched"},
                  .runs = {{.seed = 1, .values = {90, 80, 70}}, {.seed = 2, .values = {92, 84, 71}}},
                  .ensemble = {93, 85, 72}};
  EXPECT_EQ(table.markdown(),
            "| mnli | matched accuracy | mismatched accuracy | mismatched f1 |\n|--|--:|--:|--:|\n"
            "| seed 1 | 90.00 | 80.00 | 70.00 |\n| seed 2 | 92.00 | 84.00 | 71.00 |\n"
            "| median of 2 | 91.00 | 82.00 | 70.50 |\n| ensemble of 2 | 93.00 | 85.00 | 72.00 |\n");
  const auto first = nlohmann::json::parse(R"({"metric": "accuracy", "metrics": ["accuracy"],
      "seeds": {"1": {"accuracy": 90.0}, "2": {"accuracy": 92.0}}, "median": {"accuracy": 91.0},
      "ensemble": {"accuracy": 93.0}})");
  const auto second = nlohmann::json::parse(R"({"metric": "accuracy", "metrics": ["accuracy", "f1"],
      "seeds": {"1": {"accuracy": 80.0, "f1": 70.0}, "2": {"accuracy": 84.0, "f1": 71.0}},
      "median": {"accuracy": 82.0, "f1": 70.5}, "ensemble": {"accuracy": 85.0, "f1": 72.0}})");
  auto expected = first;
  expected["task"] = "mnli";
  expected["sets"] = {{"matched", first}, {"mismatched", second}};
  EXPECT_EQ(nlohmann::json::parse(table.json()), expected);
}

TEST(PredictionFiles, OfGlueAndRace) {
  const PairExamples pairs = parse_glue(kMnli, "dev.tsv", GlueTask::Mnli);
  EXPECT_EQ(glue_predictions(pairs, GlueTask::Mnli, std::vector<std::int32_t>{2, 1}),
            "index\tprediction\n7\tneutral\n9\tentailment\n");
  RaceExamples race;
  parse_race(one_line(kArticle), "m1.txt", race);
  EXPECT_EQ(race_predictions(race, std::vector<std::int32_t>{3, 0}),
            "{\n    \"m1.txt-0\": \"D\",\n    \"m1.txt-1\": \"A\"\n}\n");
}

}  // namespace
}  // namespace megatron::tasks
