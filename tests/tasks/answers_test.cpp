#include "megatron/tasks/answers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/files/file.h"
#include "megatron/tasks/scores/squad_scores.h"
#include "tests/testing/folders.h"

namespace megatron::tasks {
namespace {

/// What the official definitions give (tests/golden/tasks/make.py).
const nlohmann::json& golden() {
  static const auto json =
      nlohmann::json::parse(read_file(std::filesystem::path(tests_folder()) / "golden/tasks/answers.json"));
  return json;
}

TEST(Answers, AreComparedByTheOfficialDefinitions) {
  int cases = 0;
  for (const auto& json : golden()["cases"]) {
    const auto answer = json["answer"].get<std::string>();
    const auto texts = json["golds"].get<std::vector<std::string>>();
    const std::vector<std::string_view> golds(texts.begin(), texts.end());
    EXPECT_EQ(normalize_answer(answer), json["normalized"].get<std::string>()) << json;
    for (const auto& [version, name] : {std::pair(SquadVersion::V1, "v1"), std::pair(SquadVersion::V2, "v2")}) {
      const AnswerMatch match = match_answer(golds, answer, version);
      EXPECT_EQ(match.exact, json[name][0].get<double>()) << name << ' ' << json;
      EXPECT_EQ(match.f1, json[name][1].get<double>()) << name << ' ' << json;
    }
    ++cases;
  }
  EXPECT_GE(cases, 200);
}

TEST(Answers, TakeBytesThatAreNoTextAsOneOtherCharacterEach) {
  EXPECT_EQ(normalize_answer("a \xFF x\xC3"), "\xEF\xBF\xBD x\xEF\xBF\xBD");
}

TEST(Answers, OfManySigmasAndMarksTakeTimeThatGrowsWithTheirLength) {
  std::string sigmas, marks = "A";
  for (int i = 0; i < 200000; ++i) sigmas += "\xCE\xA3", marks += '\'';  // a search for each would take minutes
  EXPECT_EQ(normalize_answer(sigmas).substr(0, 2), "\xCF\x83");
  EXPECT_EQ(normalize_answer(marks + sigmas + marks).size(), sigmas.size() + 2);
}

struct SmallSquad {
  SquadExamples examples{.version = SquadVersion::V2};
  std::vector<std::string_view> answers;
  std::vector<double> null_odds;
};

const std::vector<std::string>& texts_of_golden() {
  static const auto texts = [] {
    std::vector<std::string> all;
    for (const auto& question : golden()["squad2"]["questions"]) all.push_back(question["answer"]);
    return all;
  }();
  return texts;
}

SmallSquad small_squad() {
  SmallSquad small;
  small.answers.assign(texts_of_golden().begin(), texts_of_golden().end());
  for (const auto& json : golden()["squad2"]["questions"]) {
    SquadQuestion question{.id = json["id"], .text = "?", .context = 0, .answers = {}};
    for (const auto& gold : json["golds"]) question.answers.push_back({.text = gold});
    small.examples.questions.push_back(std::move(question));
    small.null_odds.push_back(json["null_odds"]);
  }
  return small;
}

TEST(SquadScores, AreTheReportOfTheOfficialScriptToTheLastDigit) {
  const SmallSquad small = small_squad();
  const auto matches = match_answers(small.examples, small.answers);
  const double threshold = golden()["squad2"]["threshold"];
  const auto kept = with_null_threshold(small.examples, matches, small.null_odds, threshold);
  const auto best = best_null_thresholds(small.examples, matches, small.answers, small.null_odds);
  const std::string report = squad_report(SquadVersion::V2, squad_scores(small.examples, kept), best);
  EXPECT_EQ(nlohmann::json::parse(report), golden()["squad2"]["report"]);
}

TEST(SquadScores, HaveNoBetterThresholdThanTheOneThatIsFound) {
  SmallSquad small = small_squad();
  std::mt19937 random(3);
  for (double& odds : small.null_odds) odds += 1e-6 * static_cast<double>(random() % 1000);  // no two are equal
  for (std::size_t i = 0; i < small.answers.size(); ++i)
    if (small.answers[i].empty()) small.answers[i] = "something";
  const auto matches = match_answers(small.examples, small.answers);
  const NullThresholds best = best_null_thresholds(small.examples, matches, small.answers, small.null_odds);
  std::vector<double> thresholds = small.null_odds;
  thresholds.push_back(-1e9);
  double exact = 0, f1 = 0;
  const auto scores_at = [&](double threshold) {
    return squad_scores(small.examples, with_null_threshold(small.examples, matches, small.null_odds, threshold)).all;
  };
  for (const double threshold : thresholds) {
    exact = std::max(exact, scores_at(threshold).exact);
    f1 = std::max(f1, scores_at(threshold).f1);
  }
  EXPECT_NEAR(best.exact.score, exact, 1e-9);
  EXPECT_NEAR(best.f1.score, f1, 1e-9);
  EXPECT_NEAR(scores_at(best.exact.threshold).exact, exact, 1e-9);
  EXPECT_NEAR(scores_at(best.f1.threshold).f1, f1, 1e-9);
}

TEST(SquadScores, Of11AreExactMatchAndF1OverAllQuestions) {
  SquadExamples examples;
  for (const char* id : {"1", "2", "3"})
    examples.questions.push_back({.id = id, .text = "?", .context = 0, .answers = {{.text = "the red sea"}}});
  const std::vector<std::string_view> answers = {"Red Sea", "sea", ""};
  const SquadScores scores = squad_scores(examples, match_answers(examples, answers));
  EXPECT_FALSE(scores.has_answer || scores.no_answer);
  const auto report = nlohmann::json::parse(squad_report(SquadVersion::V1, scores, {}));
  EXPECT_EQ(report, (nlohmann::json{{"exact_match", 100.0 / 3}, {"f1", 100.0 * (1 + 2.0 / 3) / 3}}));
}

}  // namespace
}  // namespace megatron::tasks
