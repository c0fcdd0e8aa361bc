#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tasks/published/glue_examples.h"
#include "megatron/tasks/published/race_examples.h"
#include "megatron/tasks/published/squad_examples.h"
#include "megatron/tasks/scores/span_decoding.h"

// What is predicted, in the formats that the official scripts and servers read.
namespace megatron::tasks {

/// predictions.json: {question id: answer}, indented by 4, ASCII alone, in the order of the questions.
std::string squad_predictions(const SquadExamples& examples, std::span<const DecodedAnswer> decoded);
/// nbest_predictions.json: {question id: [{"text", "probability", "start_logit", "end_logit"}, …]}.
std::string squad_n_best(const SquadExamples& examples, std::span<const DecodedAnswer> decoded);
/// null_odds.json of SQuAD 2.0: {question id: score of no answer less that of the best answer}.
std::string squad_null_odds(const SquadExamples& examples, std::span<const DecodedAnswer> decoded);

struct SquadAnswers {
  std::vector<std::string> texts;  ///< one a question in order; empty where it is missing
  std::vector<bool> found;         ///< a missing one scores 0, also where the right answer has no word
};

/// The answers of a predictions.json. SQuAD 1.1 may miss some, 2.0 needs all. Throws ConfigError, which names `name`,
/// for what is not so and for text that is no such JSON.
SquadAnswers parse_squad_predictions(std::string_view text, const std::string& name, const SquadExamples& examples);
/// The null odds of null_odds.json, one a question in order; all must be there.
std::vector<double> parse_squad_null_odds(std::string_view text, const std::string& name,
                                          const SquadExamples& examples);

/// GLUE's table of a test set: "index\tprediction" and a line an example, with the names of the classes.
std::string glue_predictions(const PairExamples& examples, GlueTask task, std::span<const std::int32_t> classes);

/// The classes of such a table, whose lines must be those of the examples in order. Throws ConfigError, which names
/// `name` and line.
std::vector<std::int32_t> parse_glue_predictions(std::string_view text, const std::string& name,
                                                 const PairExamples& examples, GlueTask task);

/// RACE: {question id: "A" … "D"}, indented by 4.
std::string race_predictions(const RaceExamples& examples, std::span<const std::int32_t> options);
/// The options of such a file, one a question in order; all must be there. Throws ConfigError, which names `name`.
std::vector<std::int32_t> parse_race_predictions(std::string_view text, const std::string& name,
                                                 const RaceExamples& examples);

}  // namespace megatron::tasks
