#include "megatron/tasks/published/race_examples.h"

#include <algorithm>
#include <limits>

#include "megatron/base/files/file.h"
#include "megatron/base/text/printable.h"
#include "megatron/tasks/published/json_input.h"

namespace megatron::tasks {
namespace {

constexpr std::size_t kMaxQuestionBytes = 1 << 20;

std::string question_with(std::string_view question, std::string_view option) {
  const auto blanks = static_cast<std::size_t>(std::count(question.begin(), question.end(), '_'));
  if (question.size() > kMaxQuestionBytes || option.size() > kMaxQuestionBytes ||
      question.size() + std::max<std::size_t>(blanks, 1) * option.size() > kMaxQuestionBytes)
    throw ConfigError(
        rule_got_fix(concat("a question with an option has at most ", kMaxQuestionBytes, " bytes."),
                     concat(question.size(), " bytes, ", blanks, " spaces, an option of ", option.size(), " bytes")));
  if (blanks == 0) return concat(question, ' ', option);
  std::string text;
  for (const char c : question)
    if (c == '_')
      text += option;
    else
      text += c;
  return text;
}

RaceQuestion question_of(std::string_view question, const JsonValue& options, const JsonValue* answer) {
  RaceQuestion result;
  std::size_t count = 0;
  for (const JsonValue option : value_as<JsonArray>(options, "options")) {
    if (count < RaceQuestion::kOptions)
      result.texts[count] = question_with(question, value_as<std::string_view>(option, "options"));
    ++count;
  }
  if (count != RaceQuestion::kOptions)
    throw ConfigError(rule_got_fix("a question must have four options.", concat(count)));
  if (answer == nullptr) return result;
  const auto letter = value_as<std::string_view>(*answer, "answers");
  if (letter.size() != 1 || letter[0] < 'A' || letter[0] > 'D')
    throw ConfigError(rule_got_fix("an answer must be A, B, C or D.", in_quotes(letter)));
  result.label = letter[0] - 'A';
  return result;
}

std::vector<JsonValue> values_of(const JsonArray& array) { return {array.begin(), array.end()}; }

void add_article(const JsonValue& line, const std::string& name, RaceExamples& examples) {
  const auto questions = values_of(member<JsonArray>(line, "questions"));
  const auto options = values_of(member<JsonArray>(line, "options"));
  std::vector<JsonValue> answers;
  if (const auto found = find_member(line, "answers")) answers = values_of(value_as<JsonArray>(*found, "answers"));
  if (options.size() != questions.size() || (!answers.empty() && answers.size() != questions.size()))
    throw ConfigError(rule_got_fix(
        "there must be as many options and answers as questions.",
        concat(questions.size(), " questions, ", options.size(), " options, ", answers.size(), " answers")));
  if (examples.articles.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw ConfigError(rule_got_fix("the number of articles must fit 31 bits.", "more"));
  const auto article = static_cast<std::int32_t>(examples.articles.size());
  examples.articles.emplace_back(member<std::string_view>(line, "article"));
  const auto id = find_member(line, "id");
  const std::string article_id = id ? std::string(value_as<std::string_view>(*id, "id")) : name;
  for (std::size_t i = 0; i < questions.size(); ++i)
    at_place([&] { return concat("question ", i + 1); },
             [&] {
               RaceQuestion question = question_of(value_as<std::string_view>(questions[i], "questions"), options[i],
                                                   answers.empty() ? nullptr : &answers[i]);
               question.id = concat(article_id, '-', i);
               question.article = article;
               examples.questions.push_back(std::move(question));
             });
}

RaceLevel level_of(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.parent_path().filename();
  return folder == "middle" ? RaceLevel::Middle : folder == "high" ? RaceLevel::High : RaceLevel::Unknown;
}

}  // namespace

void parse_race(std::string_view text, const std::string& name, RaceExamples& examples) {
  simdjson::dom::parser parser;
  const std::string file = std::filesystem::path(name).filename().string();
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    at_place([&] { return concat(name, ", line ", number); },
             [&] { add_article(parse_json(parser, line), concat(file, ':', number), examples); });
  }
}

RaceExamples read_race(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files;
  std::error_code unreadable;
  if (std::filesystem::is_directory(path, unreadable)) {
    for (std::filesystem::recursive_directory_iterator entry(path, unreadable), end; !unreadable && entry != end;
         entry.increment(unreadable))
      if (std::error_code gone; entry->is_regular_file(gone) && entry->path().extension() == ".txt")
        files.push_back(entry->path());
    if (unreadable)
      throw ConfigError(
          rule_got_fix("the folder of RACE must be readable.", path.string(), "name a folder that may be read"));
    std::sort(files.begin(), files.end());
    if (files.empty())
      throw ConfigError(rule_got_fix("the folder of RACE must have .txt files.", concat("none in ", path.string()),
                                     "name the folder of one part, such as RACE/train/middle"));
  } else {
    files.push_back(path);
  }
  RaceExamples examples;
  for (const std::filesystem::path& file : files) {
    const MappedFile mapped(file);
    const std::size_t before = examples.questions.size();
    parse_race(mapped.text(), file.string(), examples);
    for (std::size_t i = before; i < examples.questions.size(); ++i) examples.questions[i].level = level_of(file);
  }
  return examples;
}

}  // namespace megatron::tasks
