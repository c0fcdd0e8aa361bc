#include "megatron/tasks/scores/prediction_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <unordered_map>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/tasks/published/json_input.h"

namespace megatron::tasks {
namespace {

using Json = nlohmann::ordered_json;

/// Members that have different keys, without a search for each as ordered_json's own insertion would do.
template <class Key, class Value>
std::string object_text(std::size_t size, const Key& key, const Value& value) {
  Json object = Json::object();
  Json::object_t::Container& members = object.get_ref<Json::object_t&>();
  members.reserve(size);
  for (std::size_t i = 0; i < size; ++i) members.emplace_back(key(i), value(i));
  return object.dump(4, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

template <class Value>
std::string by_question(const SquadExamples& examples, std::size_t decoded, const Value& value) {
  if (decoded != examples.questions.size()) throw std::logic_error("predictions: one a question");
  return object_text(
      decoded, [&](std::size_t i) { return examples.questions[i].id; }, value);
}

/// Calls take(question, value, id) for the members of the object that are ids of `questions`; others are skipped,
/// as the official scripts do. Returns which questions it had.
template <class Questions, class Take>
std::vector<bool> read_by_question(std::string_view text, const std::string& name, const Questions& asked,
                                   const Take& take) {
  std::unordered_map<std::string_view, std::size_t> questions;
  for (std::size_t i = 0; i < asked.size(); ++i) questions.emplace(asked[i].id, i);
  std::vector<bool> found(asked.size());
  at_place([&] { return name; },
           [&] {
             simdjson::dom::parser parser;
             simdjson::dom::object members;
             if (parse_json(parser, text).get(members) != simdjson::SUCCESS)
               throw ConfigError(rule_got_fix("the file must be an object of question ids.", "another value"));
             for (const auto field : members)
               if (const auto question = questions.find(field.key); question != questions.end()) {
                 take(question->second, field.value, field.key);
                 found[question->second] = true;
               }
           });
  return found;
}

[[noreturn]] void fail_missing(const std::string& name, const std::string& question) {
  throw ConfigError(rule_got_fix(concat(name, ": every question must have its line."), "none of " + question,
                                 "--limit N of the run that predicted the first N, or predictions of this file"));
}

}  // namespace

std::string squad_predictions(const SquadExamples& examples, std::span<const DecodedAnswer> decoded) {
  return by_question(examples, decoded.size(), [&](std::size_t i) { return Json(decoded[i].answer); });
}

std::string squad_n_best(const SquadExamples& examples, std::span<const DecodedAnswer> decoded) {
  return by_question(examples, decoded.size(), [&](std::size_t i) {
    Json list = Json::array();
    for (const SpanCandidate& candidate : decoded[i].n_best)
      list.push_back({{"text", candidate.text},
                      {"probability", candidate.probability},
                      {"start_logit", candidate.start_logit},
                      {"end_logit", candidate.end_logit}});
    return list;
  });
}

std::string squad_null_odds(const SquadExamples& examples, std::span<const DecodedAnswer> decoded) {
  return by_question(examples, decoded.size(), [&](std::size_t i) { return Json(decoded[i].null_odds); });
}

SquadAnswers parse_squad_predictions(std::string_view text, const std::string& name, const SquadExamples& examples) {
  SquadAnswers answers{.texts = std::vector<std::string>(examples.questions.size()), .found = {}};
  answers.found =
      read_by_question(text, name, examples.questions, [&](std::size_t i, const JsonValue& value, auto key) {
        answers.texts[i] = value_as<std::string_view>(value, key);
      });
  if (examples.version == SquadVersion::V2)
    for (std::size_t i = 0; i < answers.found.size(); ++i)
      if (!answers.found[i]) fail_missing(name, examples.questions[i].id);
  return answers;
}

std::vector<double> parse_squad_null_odds(std::string_view text, const std::string& name,
                                          const SquadExamples& examples) {
  std::vector<double> odds(examples.questions.size());
  const auto found =
      read_by_question(text, name, examples.questions, [&](std::size_t i, const JsonValue& value, auto key) {
        if (value.get(odds[i]) != simdjson::SUCCESS)
          throw ConfigError(rule_got_fix(concat("\"", key, "\" must be a number."), "another value"));
      });
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!found[i]) fail_missing(name, examples.questions[i].id);
  return odds;
}

std::string glue_predictions(const PairExamples& examples, GlueTask task, std::span<const std::int32_t> classes) {
  if (classes.size() != examples.examples.size()) throw std::logic_error("predictions: one an example");
  std::string table = "index\tprediction\n";
  for (std::size_t i = 0; i < classes.size(); ++i)
    table += concat(examples.examples[i].id, '\t', glue_labels(task).at(static_cast<std::size_t>(classes[i])), '\n');
  return table;
}

std::vector<std::int32_t> parse_glue_predictions(std::string_view text, const std::string& name,
                                                 const PairExamples& examples, GlueTask task) {
  const std::vector<std::string>& labels = glue_labels(task);
  std::vector<std::int32_t> classes;
  const auto fail = [&](std::size_t line, const std::string& rule, const std::string& got,
                        const std::string& fix = "one prediction a line, as the benchmark takes them") {
    throw ConfigError(rule_got_fix(concat(name, ", line ", line, ": ", rule), got, fix));
  };
  std::size_t line = 0;
  while (!text.empty()) {
    std::string_view row = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), row.size() + 1));
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (++line == 1) continue;  // the names of the columns
    const std::size_t tab = row.find('\t'), example = line - 2;
    if (tab == std::string_view::npos) fail(line, "an id, a tab and a class must stand here.", in_quotes(row));
    if (example >= examples.examples.size() || row.substr(0, tab) != examples.examples[example].id)
      fail(line, "the lines must be those of the examples in order.", in_quotes(row.substr(0, tab)));
    const auto label = std::ranges::find(labels, row.substr(tab + 1));
    if (label == labels.end()) fail(line, "the class must be one of the task's.", in_quotes(row.substr(tab + 1)));
    classes.push_back(static_cast<std::int32_t>(label - labels.begin()));
  }
  if (classes.size() != examples.examples.size())
    fail(line, concat("each of ", examples.examples.size(), " examples must have a line."), concat(classes.size()),
         concat("--limit ", classes.size(), ", where the run that predicted had it"));
  return classes;
}

std::vector<std::int32_t> parse_race_predictions(std::string_view text, const std::string& name,
                                                 const RaceExamples& examples) {
  std::vector<std::int32_t> options(examples.questions.size());
  const auto found =
      read_by_question(text, name, examples.questions, [&](std::size_t i, const JsonValue& value, auto key) {
        const auto letter = value_as<std::string_view>(value, key);
        if (letter.size() != 1 || letter[0] < 'A' || letter[0] > 'D')
          throw ConfigError(rule_got_fix(concat("\"", key, "\" must be A, B, C or D."), in_quotes(letter)));
        options[i] = letter[0] - 'A';
      });
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!found[i]) fail_missing(name, examples.questions[i].id);
  return options;
}

std::string race_predictions(const RaceExamples& examples, std::span<const std::int32_t> options) {
  if (options.size() != examples.questions.size()) throw std::logic_error("predictions: one a question");
  return object_text(
      options.size(), [&](std::size_t i) { return examples.questions[i].id; },
      [&](std::size_t i) { return Json(std::string(1, static_cast<char>('A' + options[i]))); });
}

}  // namespace megatron::tasks
