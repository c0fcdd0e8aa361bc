#include "megatron/tasks/published/choice.h"

#include <charconv>

#include "megatron/base/error.h"
#include "megatron/base/files/regular_file.h"
#include "megatron/data/files/text_reader.h"
#include "megatron/tasks/published/json_input.h"

namespace megatron::tasks {
namespace {

constexpr std::size_t kMaxChoices = 100;

bool is_white_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/// A number, also written as a text.
std::int64_t label_of(const JsonValue& value) {
  if (!value.is_string()) return value_as<std::int64_t>(value, "label");
  const auto digits = value_as<std::string_view>(value, "label");
  std::int64_t label = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), label);
  if (error != std::errc() || end != digits.data() + digits.size()) return -1;
  return label;
}

}  // namespace

Continuation continuation(std::string_view context, std::string_view choice) {
  std::size_t end = context.size();
  while (end > 0 && is_white_space(context[end - 1])) --end;
  std::string answer(context.substr(end));
  if (answer.empty() && !choice.empty() && !is_white_space(choice.front())) answer = " ";
  return {std::string(context.substr(0, end)), answer.append(choice)};
}

ChoiceQuestion parse_choice(std::string_view line) {
  simdjson::dom::parser parser;
  const JsonValue object = parse_json(parser, line);
  ChoiceQuestion question{
      .context = std::string(member<std::string_view>(object, "context")), .choices = {}, .label = 0};
  const auto choices = member<JsonArray>(object, "choices");
  if (choices.size() < 2 || choices.size() > kMaxChoices)
    throw ConfigError(
        rule_got_fix(concat("a question must have 2 to ", kMaxChoices, " choices."), concat(choices.size())));
  for (const auto choice : choices) {
    question.choices.emplace_back(value_as<std::string_view>(choice, "choices"));
    if (question.choices.back().empty()) throw ConfigError(rule_got_fix("a choice must have text.", "none"));
  }
  const auto label = find_member(object, "label");
  if (!label) throw ConfigError(rule_got_fix("a question must have a \"label\".", "none"));
  question.label = label_of(*label);
  if (question.label < 0 || question.label >= static_cast<std::int64_t>(question.choices.size()))
    throw ConfigError(rule_got_fix(concat("\"label\" must be one of 0 … ", question.choices.size() - 1, "."),
                                   concat(question.label)));
  return question;
}

std::vector<ChoiceQuestion> read_choices(const std::string& path, std::int64_t limit) {
  check_regular(path);
  data::BlockReader reader(
      {.inputs = {path}, .format = data::TextFormat::Jsonl, .json_key = {}, .max_document_bytes = 1 << 20});
  std::vector<ChoiceQuestion> questions;
  const auto enough = [&] { return limit > 0 && static_cast<std::int64_t>(questions.size()) >= limit; };
  for (data::TextBlock block; !enough() && reader.next(block);)
    for (const data::TextBlock::Record& record : block.records) {
      if (enough()) break;
      at_place([&] { return concat(path, ", line ", record.line); },
               [&] {
                 if (record.too_long) throw ConfigError(rule_got_fix("a line has at most 1 MiB.", "more"));
                 questions.push_back(parse_choice(std::string_view(block.bytes).substr(record.begin, record.size)));
               });
    }
  if (questions.empty())
    throw ConfigError(rule_got_fix("a file of questions must have one.", "none in " + path,
                                   "one question a line, as docs/evaluation.md says"));
  return questions;
}

}  // namespace megatron::tasks
