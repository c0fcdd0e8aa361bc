#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tasks/answers.h"
#include "megatron/tasks/published/squad_examples.h"

// The official scores of SQuAD, to the last digit: means over questions, in percent.
namespace megatron::tasks {

/// Of each question in order: its answer compared with those that are right. `answers`: one a question.
std::vector<AnswerMatch> match_answers(const SquadExamples& examples, std::span<const std::string_view> answers);

struct SquadMean {
  double exact = 0, f1 = 0;  ///< percent; 0 where there are no questions
  std::int64_t total = 0;    ///< questions
};

struct SquadScores {
  SquadMean all;
  std::optional<SquadMean> has_answer, no_answer;  ///< SQuAD 2.0: of the questions that have one and that have none
};
SquadScores squad_scores(const SquadExamples& examples, std::span<const AnswerMatch> matches);

/// The matches that remain where a question with null_odds above `threshold` is answered by nothing.
std::vector<AnswerMatch> with_null_threshold(const SquadExamples& examples, std::span<const AnswerMatch> matches,
                                             std::span<const double> null_odds, double threshold);

struct NullThreshold {
  double score = 0;      ///< percent that it reaches
  double threshold = 0;  ///< one of the null odds, or 0 where answering nothing at all is best
};
struct NullThresholds {
  NullThreshold exact, f1;
};
/// The thresholds that are best for these questions, each for its measure. `answers`: what is answered below the
/// threshold, as in match_answers(). As the official script finds them: of equal null odds it may stop between two.
NullThresholds best_null_thresholds(const SquadExamples& examples, std::span<const AnswerMatch> matches,
                                    std::span<const std::string_view> answers, std::span<const double> null_odds);

/// The report of the official script as JSON, indented by 2: exact_match and f1 for 1.1; for 2.0 exact, f1, total,
/// HasAns_… and NoAns_… and, where `best` is given, best_exact, best_exact_thresh, best_f1, best_f1_thresh.
std::string squad_report(SquadVersion version, const SquadScores& scores, const std::optional<NullThresholds>& best);

}  // namespace megatron::tasks
