#include "megatron/tasks/scores/squad_scores.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

namespace megatron::tasks {
namespace {

void need_one_each(const SquadExamples& examples, std::size_t size) {
  if (size != examples.questions.size()) throw std::logic_error("SQuAD: there must be one a question");
}

bool has_answer(const SquadQuestion& question) { return !question.answers.empty(); }

/// Adds in the order of the questions, as the official script does.
template <class Use>
SquadMean mean_of(const SquadExamples& examples, std::span<const AnswerMatch> matches, const Use& use) {
  SquadMean mean;
  for (std::size_t i = 0; i < matches.size(); ++i) {
    if (!use(examples.questions[i])) continue;
    mean.exact += matches[i].exact;
    mean.f1 += matches[i].f1;
    ++mean.total;
  }
  if (mean.total == 0) return mean;
  mean.exact = 100.0 * mean.exact / static_cast<double>(mean.total);
  mean.f1 = 100.0 * mean.f1 / static_cast<double>(mean.total);
  return mean;
}

/// Goes from answering nothing to answering everything in the order of the null odds, and keeps the best sum.
template <class Score>
NullThreshold best_threshold(const SquadExamples& examples, std::span<const std::string_view> answers,
                             std::span<const double> null_odds, const Score& score) {
  std::vector<std::size_t> order(null_odds.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return null_odds[a] < null_odds[b]; });
  double sum = static_cast<double>(std::count_if(examples.questions.begin(), examples.questions.end(),
                                                 [](const SquadQuestion& question) { return !has_answer(question); }));
  NullThreshold best{.score = sum, .threshold = 0};
  for (const std::size_t i : order) {
    if (has_answer(examples.questions[i]))
      sum += score(i);
    else if (!answers[i].empty())
      sum -= 1;
    if (sum > best.score) best = {.score = sum, .threshold = null_odds[i]};
  }
  best.score = order.empty() ? 0 : 100.0 * best.score / static_cast<double>(order.size());
  return best;
}

void add(nlohmann::ordered_json& report, const char* prefix, const SquadMean& mean) {
  const std::string name = prefix;
  report[name + "exact"] = mean.exact;
  report[name + "f1"] = mean.f1;
  report[name + "total"] = mean.total;
}

}  // namespace

std::vector<AnswerMatch> match_answers(const SquadExamples& examples, std::span<const std::string_view> answers) {
  need_one_each(examples, answers.size());
  std::vector<AnswerMatch> matches;
  matches.reserve(answers.size());
  std::vector<std::string_view> golds;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    golds.clear();
    for (const SquadAnswer& answer : examples.questions[i].answers) golds.emplace_back(answer.text);
    matches.push_back(match_answer(golds, answers[i], examples.version));
  }
  return matches;
}

SquadScores squad_scores(const SquadExamples& examples, std::span<const AnswerMatch> matches) {
  need_one_each(examples, matches.size());
  SquadScores scores{
      .all = mean_of(examples, matches, [](const SquadQuestion&) { return true; }), .has_answer = {}, .no_answer = {}};
  if (examples.version == SquadVersion::V1) return scores;
  scores.has_answer = mean_of(examples, matches, has_answer);
  scores.no_answer = mean_of(examples, matches, [](const SquadQuestion& question) { return !has_answer(question); });
  return scores;
}

std::vector<AnswerMatch> with_null_threshold(const SquadExamples& examples, std::span<const AnswerMatch> matches,
                                             std::span<const double> null_odds, double threshold) {
  need_one_each(examples, matches.size());
  need_one_each(examples, null_odds.size());
  std::vector<AnswerMatch> result(matches.begin(), matches.end());
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (!(null_odds[i] > threshold)) continue;
    const double right = has_answer(examples.questions[i]) ? 0 : 1;
    result[i] = {.exact = right, .f1 = right};
  }
  return result;
}

NullThresholds best_null_thresholds(const SquadExamples& examples, std::span<const AnswerMatch> matches,
                                    std::span<const std::string_view> answers, std::span<const double> null_odds) {
  for (const std::size_t size : {matches.size(), answers.size(), null_odds.size()}) need_one_each(examples, size);
  return {.exact = best_threshold(examples, answers, null_odds, [&](std::size_t i) { return matches[i].exact; }),
          .f1 = best_threshold(examples, answers, null_odds, [&](std::size_t i) { return matches[i].f1; })};
}

std::string squad_report(SquadVersion version, const SquadScores& scores, const std::optional<NullThresholds>& best) {
  nlohmann::ordered_json report;
  if (version == SquadVersion::V1) {
    report = {{"exact_match", scores.all.exact}, {"f1", scores.all.f1}};
  } else {
    add(report, "", scores.all);
    // The official script has no line for a kind of question that does not occur.
    if (scores.has_answer && scores.has_answer->total > 0) add(report, "HasAns_", *scores.has_answer);
    if (scores.no_answer && scores.no_answer->total > 0) add(report, "NoAns_", *scores.no_answer);
    if (best) {
      report["best_exact"] = best->exact.score;
      report["best_exact_thresh"] = best->exact.threshold;
      report["best_f1"] = best->f1.score;
      report["best_f1_thresh"] = best->f1.threshold;
    }
  }
  return report.dump(2) + "\n";
}

}  // namespace megatron::tasks
