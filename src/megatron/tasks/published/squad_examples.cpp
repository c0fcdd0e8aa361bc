#include "megatron/tasks/published/squad_examples.h"

#include <limits>
#include <unordered_set>

#include "megatron/base/files/file.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/text/utf8.h"
#include "megatron/tasks/published/json_input.h"

namespace megatron::tasks {
namespace {

class SquadReader {
 public:
  explicit SquadReader(SquadVersion version) { examples_.version = version; }

  SquadExamples read(std::string_view text) {
    simdjson::dom::parser parser;
    const JsonValue file = parse_json(parser, text);
    each("data", member<JsonArray>(file, "data"), [&](const JsonValue& article) {
      each("paragraphs", member<JsonArray>(article, "paragraphs"),
           [&](const JsonValue& paragraph) { add_paragraph(paragraph); });
    });
    if (answered_ != 0 && answered_ != examples_.questions.size())
      throw ConfigError(rule_got_fix("all questions must have \"answers\" or none.",
                                     concat(answered_, " of ", examples_.questions.size())));
    examples_.labelled = answered_ > 0;
    return std::move(examples_);
  }

 private:
  template <class Work>
  static void each(const char* name, const JsonArray& array, const Work& work) {
    std::size_t i = 0;
    for (const JsonValue value : array) {
      at_place([&] { return concat(name, '[', i, ']'); }, [&] { work(value); });
      ++i;
    }
  }

  void add_paragraph(const JsonValue& paragraph) {
    if (examples_.contexts.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
      throw ConfigError(rule_got_fix("the number of contexts must fit 31 bits.", "more"));
    context_ = examples_.contexts.emplace_back(member<std::string_view>(paragraph, "context"));
    if (context_.size() > std::numeric_limits<std::uint32_t>::max())
      throw ConfigError(rule_got_fix("a context must have fewer than 2^32 bytes.", concat(context_.size())));
    begins_.clear();
    for_each_character(context_, [&](const DecodedChar&, std::size_t begin, std::size_t) {
      begins_.push_back(static_cast<std::uint32_t>(begin));
    });
    each("qas", member<JsonArray>(paragraph, "qas"), [&](const JsonValue& question) { add_question(question); });
  }

  void add_question(const JsonValue& json) {
    SquadQuestion question{.id = std::string(member<std::string_view>(json, "id")),
                           .text = std::string(member<std::string_view>(json, "question")),
                           .context = static_cast<std::int32_t>(examples_.contexts.size() - 1),
                           .answers = {}};
    if (!ids_.insert(question.id).second)
      throw ConfigError(rule_got_fix("each id must occur once.", in_quotes(question.id) + " again"));
    if (const auto answers = find_member(json, "answers")) {
      ++answered_;
      each("answers", value_as<JsonArray>(*answers, "answers"),
           [&](const JsonValue& answer) { question.answers.push_back(answer_of(answer)); });
      if (question.answers.empty() && examples_.version == SquadVersion::V1)
        throw ConfigError(
            rule_got_fix("each question of SQuAD 1.1 must have an answer.", "none", "read the file as SQuAD 2.0"));
    }
    if (examples_.questions.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
      throw ConfigError(rule_got_fix("the number of questions must fit 31 bits.", "more"));
    examples_.questions.push_back(std::move(question));
  }

  SquadAnswer answer_of(const JsonValue& json) {
    SquadAnswer answer{.text = std::string(member<std::string_view>(json, "text"))};
    const auto start = member<std::int64_t>(json, "answer_start");
    if (start < 0 || static_cast<std::uint64_t>(start) > begins_.size())
      throw ConfigError(
          rule_got_fix(concat("answer_start must be 0 to ", begins_.size(), ", as the context has."), concat(start)));
    const auto character = static_cast<std::size_t>(start);
    const std::size_t begin = character < begins_.size() ? begins_[character] : context_.size();
    const bool stands_there = !answer.text.empty() && context_.substr(begin).starts_with(answer.text);
    if (stands_there)
      answer.begin = begin;
    else
      ++examples_.misplaced;
    return answer;
  }

  SquadExamples examples_;
  std::string_view context_;           // of the paragraph at hand; lives until the next one is added
  std::vector<std::uint32_t> begins_;  // bytes at which its characters begin
  std::unordered_set<std::string> ids_;
  std::size_t answered_ = 0;  // questions with "answers"
};

}  // namespace

SquadExamples parse_squad(std::string_view text, const std::string& name, SquadVersion version) {
  SquadExamples examples;
  at_place([&] { return name; }, [&] { examples = SquadReader(version).read(text); });
  return examples;
}

SquadExamples read_squad(const std::filesystem::path& path, SquadVersion version) {
  const MappedFile file(path);
  return parse_squad(file.text(), path.string(), version);
}

}  // namespace megatron::tasks
