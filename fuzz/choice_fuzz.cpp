#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/tasks/published/choice.h"
#include "megatron/tasks/published/lambada.h"

// Any bytes as a question of multiple choice and as a passage. What has to hold of what is accepted ends the program
// where it does not.
namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void read_question(std::string_view line) {
  using namespace megatron::tasks;
  const ChoiceQuestion question = parse_choice(line);
  check(question.choices.size() >= 2 && question.label >= 0 &&
        question.label < static_cast<std::int64_t>(question.choices.size()));
  for (const auto& choice : question.choices) {
    const auto [context, answer] = continuation(question.context, choice);
    check(question.context.starts_with(context) && answer.ends_with(choice));
    const std::size_t added = context.size() + answer.size() - question.context.size() - choice.size();
    check(added <= 1);  // a space
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    read_question(text);
  } catch (const megatron::ConfigError&) {
  }
  try {
    const auto [context, word] = megatron::tasks::split_last_word(text);
    check(context + word == text && word.find(' ', 1) == std::string::npos);
  } catch (const megatron::ConfigError&) {
  }
  return 0;
}
